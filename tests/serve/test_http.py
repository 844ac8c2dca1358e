"""HTTP/1.1 as bytes on an in-memory transport: no sockets, no waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

from firstlight.serve.app import Exchange, Handler, Objection
from firstlight.serve.http_server import Connection, Limits, Server


class Transport:
    """Records what was written, and whether it was closed; `unsent` is what is not taken."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.ended = self.paused = False
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[Any]) -> None:
        self.written += b"".join(parts)

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def receive(connection: Connection, data: bytes) -> None:
    """Pass bytes to a connection as a socket would."""
    while data:
        place = connection.get_buffer(-1)
        part, data = data[: len(place)], data[len(place) :]
        place[: len(part)] = part
        connection.buffer_updated(len(part))


class EchoApp(Handler):
    """Answers with the request's path and body, immediately or when the test does it."""

    def __init__(self, later: bool = False) -> None:
        self.later, self.waiting = later, list[Exchange]()
        self.departures = 0

    def objection(self, exchange: Exchange) -> Objection | None:
        return Objection(401, "no.") if exchange.path == b"/forbidden" else None

    def left(self) -> None:
        self.departures += 1

    def handle(self, exchange: Exchange) -> None:
        if self.later:
            self.waiting.append(exchange)
        else:
            exchange.answer(200, [exchange.path, b" ", bytes(exchange.body)])


class Wire:
    """One connection to a server with small limits."""

    def __init__(self, later: bool = False, **limits: Any) -> None:
        self.app = EchoApp(later)
        given = {"body_bytes": 100, "all_bodies_bytes": 150, "head_bytes": 200, **limits}
        self.server = Server(self.app, Limits(**given))  # type: ignore[arg-type]
        self.connection, self.transport = self.connect()

    def connect(self) -> tuple[Connection, Transport]:
        connection, transport = Connection(self.server), Transport()
        connection.connection_made(transport)
        return connection, transport

    def send(self, data: bytes) -> bytes:
        async def body() -> None:
            receive(self.connection, data)
            for _ in range(20):
                await asyncio.sleep(0)

        asyncio.run(body())
        return self.transport.written

    @property
    def status(self) -> int:
        return int(self.transport.written.split(b" ")[1])


def post(body: bytes, path: bytes = b"/p", more: bytes = b"") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\nhost: h\r\n%s%s\r\n%s" % (path, length, more, body)


def test_a_request_is_answered_and_the_connection_kept() -> None:
    wire = Wire()
    assert wire.send(post(b"abc")).endswith(b"content-length: 6\r\n\r\n/p abc")
    assert not wire.transport.closed
    assert wire.send(post(b"d")).count(b"HTTP/1.1 200 OK") == 2


def test_one_byte_at_a_time_is_the_same_request() -> None:
    wire = Wire()
    for byte in post(b"abc", b"/p?q=1"):
        receive(wire.connection, bytes([byte]))
    assert wire.transport.written.endswith(b"\r\n\r\n/p abc")


def test_a_chunked_body_is_reassembled() -> None:
    head = b"POST /p HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    assert Wire().send(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").endswith(b"/p abcde")


def test_pipelined_requests_are_answered_in_order() -> None:
    wire = Wire(later=True)
    wire.send(post(b"1") + post(b"2") + post(b"3"))
    assert len(wire.app.waiting) == 1  # one after the other

    async def answer_all() -> None:
        while wire.app.waiting:
            exchange = wire.app.waiting.pop()
            exchange.answer(200, [b"<", exchange.body, b">"])
            await asyncio.sleep(0)

    asyncio.run(answer_all())
    bodies = [part.split(b"\r\n\r\n")[1] for part in wire.transport.written.split(b"HTTP/1.1")[1:]]
    assert bodies == [b"<1>", b"<2>", b"<3>"]


def test_too_many_pipelined_requests_pause_reading() -> None:
    wire = Wire(later=True)
    wire.send(post(b"1") * 20)
    assert wire.transport.paused


def test_connection_close_and_http_1_0_are_honoured() -> None:
    wire = Wire()
    assert b"connection: close" in wire.send(post(b"", more=b"connection: close\r\n"))
    assert wire.transport.closed
    old = Wire()
    old.send(b"GET /p HTTP/1.0\r\n\r\n")
    assert old.transport.closed


def test_an_offer_to_upgrade_is_answered_in_http_1_1() -> None:
    wire = Wire()
    wire.send(b"GET /p HTTP/1.1\r\nhost: h\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n")
    assert wire.status == 200 and wire.transport.closed


def test_a_head_request_gets_no_body() -> None:
    assert Wire().send(b"HEAD /p HTTP/1.1\r\nhost: h\r\n\r\n").endswith(b"\r\n\r\n")


def test_expect_100_continue_is_answered() -> None:
    wire = Wire()
    head, _, body = post(b"abc", more=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    assert wire.send(head + b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert wire.send(body).endswith(b"/p abc")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),  # TLS
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: 101\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n65\r\n" + b"x" * 101, 413),
        (b"GET /" + b"x" * 300 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 60 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\na: " + b"x" * 200, 431),  # a line without an end
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"x" * 450, 431),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 60, 431),
        (b"POST /forbidden HTTP/1.1\r\ncontent-length: 50\r\n\r\n", 401),
    ],
)
def test_an_invalid_request_is_refused_and_the_connection_closed(data: bytes, status: int) -> None:
    wire = Wire()
    wire.send(data)
    assert wire.status == status
    assert wire.transport.ended
    assert wire.send(post(b"abc")).count(b"HTTP/1.1 ") == 1  # nothing more is read
    assert wire.server.body_bytes == 0


def test_a_slow_request_is_answered_408_and_an_idle_connection_is_closed() -> None:
    slow, idle = Wire(), Wire()
    slow.send(post(b"abc")[:-1])
    now = time.perf_counter()
    for wire in (slow, idle):
        wire.connection.check_time(now + 19)
        assert not wire.transport.written and not wire.transport.closed
    slow.connection.check_time(now + 21)
    idle.connection.check_time(now + 76)
    assert slow.status == 408 and slow.transport.ended
    assert idle.transport.closed and not idle.transport.written
    slow.connection.check_time(now + 200)  # the client never closed its side
    assert slow.transport.closed


def test_a_request_that_is_being_computed_is_not_slow() -> None:
    wire = Wire(later=True)
    wire.send(post(b"abc"))
    wire.connection.check_time(time.perf_counter() + 1000)
    assert not wire.transport.written and not wire.transport.closed


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_share_a_bound_and_give_it_back(chunked: bool) -> None:
    wire = Wire(later=True, body_bytes=10**6, all_bodies_bytes=150_000)
    large = b"x" * 90_000
    head = b"POST /p HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    sent = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large) if chunked else post(large)
    wire.send(sent)
    second, transport = wire.connect()
    receive(second, sent)
    assert b" 429 " in transport.written and b"retry-after" in transport.written
    small, transport = wire.connect()
    receive(small, post(b"x" * 65_000))
    assert len(wire.app.waiting) == 2 and not transport.written
    wire.connection.connection_lost(None)
    assert wire.server.body_bytes == 0


def test_connections_above_the_limit_are_answered_503() -> None:
    wire = Wire(connections=1)
    _, transport = wire.connect()
    assert b" 503 " in transport.written


def test_a_client_that_left_is_gone_and_its_answer_is_dropped() -> None:
    wire = Wire(later=True)
    wire.send(post(b"abc"))
    (exchange,) = wire.app.waiting
    assert not exchange.is_gone()
    wire.connection.connection_lost(None)
    assert exchange.is_gone()
    exchange.answer(200, [b"late"])
    assert wire.transport.written == b"" and not wire.server.connections


def test_draining_closes_idle_connections_and_the_others_after_their_answer() -> None:
    wire = Wire(later=True)
    _, idle = wire.connect()
    wire.send(post(b"abc"))
    wire.server.drain()
    assert idle.closed and not wire.transport.closed
    wire.app.waiting[0].answer(200, [b"done"])
    assert b"connection: close" in wire.transport.written and wire.transport.closed


def test_the_bytes_of_a_large_tensor_begin_where_xla_can_use_them() -> None:
    wire = Wire(later=True, body_bytes=10**6, all_bodies_bytes=10**6)
    for first in (1, 17, 150):
        body = b"{" * first + bytes(range(256)) * 400
        wire.send(post(body, more=b"inference-header-content-length: %d\r\n" % first))
        exchange = wire.app.waiting.pop()
        assert bytes(exchange.body) == body
        assert np.frombuffer(exchange.body[first:], np.uint8).ctypes.data % 64 == 0
        exchange.answer(200, [b""])
    assert wire.server.body_bytes == 0


def test_a_large_body_is_received_in_place_and_what_follows_is_the_next_request() -> None:
    wire = Wire(later=True, body_bytes=10**6, all_bodies_bytes=10**6)
    bodies = [bytes([i]) * 200_000 for i in range(3)]
    wire.send(b"".join(map(post, bodies)) + post(b"small"))  # all before the first answer
    assert wire.server.body_bytes == 600_000
    large = wire.app.waiting[0].body
    assert isinstance(large, memoryview)

    async def answer_all() -> None:
        while wire.app.waiting:
            exchange = wire.app.waiting.pop()
            exchange.answer(200, [b"<", exchange.body[:5], b">", b"%d" % len(exchange.body)])
            await asyncio.sleep(0)

    asyncio.run(answer_all())
    answers = [part.split(b"\r\n\r\n")[1] for part in wire.transport.written.split(b"HTTP/")[1:]]
    assert answers == [*(b"<%s>200000" % body[:5] for body in bodies), b"<small>5"]
    assert wire.server.body_bytes == 0


def test_a_line_without_end_is_refused_before_it_costs_quadratic_time() -> None:
    wire = Wire(head_bytes=16_384)
    fed = []

    class Parser:
        def feed_data(self, data: memoryview) -> None:
            fed.append(len(data))

    wire.connection.parser = Parser()
    wire.send(b"GET / HTTP/1.1\r\na: " + b"x" * 10**6)
    assert sum(fed) == 16_384 and wire.status == 431


@pytest.mark.parametrize("pieces", [1, 7, 100_000])
def test_the_bytes_of_a_head_are_counted_however_they_arrive(pieces: int) -> None:
    def sent(wire: Wire, data: bytes) -> Wire:
        for start in range(0, len(data), pieces):
            receive(wire.connection, data[start : start + pieces])
        return wire

    fits = b"GET /p HTTP/1.1\r\na: %s\r\n\r\n"
    fits = fits % (b"x" * (200 - len(fits) + 2))
    assert len(fits) == 200
    assert sent(Wire(), fits * 3).transport.written.count(b" 200 ") == 3
    assert sent(Wire(), fits.replace(b"x", b"xx", 1)).status == 431


def test_trailers_are_discarded() -> None:
    wire = Wire(later=True)
    head = b"POST /p HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    wire.send(head + b"1\r\na\r\n0\r\nauthorization: Bearer x\r\nhost: other\r\n\r\n")
    (exchange,) = wire.app.waiting
    assert exchange.headers == {b"host": b"h", b"transfer-encoding": b"chunked"}


def test_what_a_head_decides_is_answered_before_a_byte_of_the_body() -> None:
    wire = Wire()
    head, _, body = post(b"x" * 90, b"/forbidden").partition(b"\r\n\r\n")
    wire.send(head + b"\r\n\r\n")
    assert wire.status == 401 and b"connection: close" in wire.transport.written
    wire.send(body)
    assert wire.server.body_bytes == 0 and wire.transport.written.count(b"HTTP/1.1") == 1


def test_pipelined_requests_wait_until_the_client_takes_its_answers() -> None:
    wire = Wire()

    async def body() -> None:
        wire.connection.pause_writing()
        receive(wire.connection, post(b"1") + post(b"2") + post(b"3"))
        await asyncio.sleep(0)
        assert wire.transport.written == b"" and wire.transport.paused
        wire.connection.resume_writing()
        assert not wire.transport.paused
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(body())
    assert wire.transport.written.count(b" 200 ") == 3


def test_a_client_that_takes_no_byte_of_its_answer_is_disconnected() -> None:
    stuck, slow = Wire(), Wire()
    for wire in (stuck, slow):
        wire.send(post(b"abc"))
        wire.transport.unsent = 50
    now = time.perf_counter()
    for second in range(30):
        slow.transport.unsent -= 1
        for wire in (stuck, slow):
            wire.connection.check_time(now + second)
        assert stuck.transport.closed == (second > 20)
    assert not slow.transport.closed


def test_unsent_answers_share_a_bound_and_those_that_stall_longest_pay() -> None:
    wire = Wire(unsent_bytes=100)
    connections = [wire.connect() for _ in range(4)]
    for connection, transport in connections:
        transport.unsent = 40
        connection.pause_writing()
    # The oldest of the first three went when the bound was passed, then the next one.
    assert [transport.closed for _, transport in connections] == [True, True, False, False]
    alone, transport = Wire(unsent_bytes=100).connect()
    transport.unsent = 1000  # one answer may be larger than the bound
    alone.pause_writing()
    assert not transport.closed


def test_a_client_that_ended_its_side_has_left() -> None:
    wire = Wire(later=True)
    wire.send(post(b"1") + post(b"2"))
    (exchange,) = wire.app.waiting
    assert not wire.connection.eof_received()  # so the transport closes itself
    assert exchange.is_gone() and wire.app.departures == 1
    exchange.answer(200, [b"late"])
    wire.connection.connection_lost(None)
    assert wire.transport.written == b"" and wire.app.departures == 1
    assert len(wire.app.waiting) == 1


def test_draining_waits_for_the_next_request_of_an_idle_connection() -> None:
    wire = Wire()
    wire.send(post(b"1"))
    _, other = wire.connect()
    wire.server.drain(idle_seconds=60)
    assert not wire.transport.closed
    wire.send(post(b"2"))
    assert wire.transport.written.count(b"connection: close") == 1 and wire.transport.closed
    late, transport = wire.connect()
    receive(late, post(b"3"))
    assert b" 200 " in transport.written and transport.closed
    wire.server.drain()
    assert other.closed
