"""`firstlight load` against small servers in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from firstlight.cli import main
from firstlight.load.generator import BROKEN, Loop, Seen, ask
from firstlight.load.summary import lines, quantile
from firstlight.load.target import Target, TargetError, target_of
from firstlight.runs import Run

ABOUT = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]}
#: Answers request `number`; returns whether to keep the connection.
Behaviour = Callable[[int, bytes, asyncio.StreamWriter], Awaitable[bool]]


def answer(status: int, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


async def fine(number: int, path: bytes, writer: asyncio.StreamWriter) -> bool:
    known = {b"/v2/models": [{"name": "m"}], b"/v2/models/m": ABOUT}
    writer.write(answer(200, json.dumps(known.get(path, {"y": [1]})).encode()))
    return True


class Server:
    """Counts requests, and answers with a given behaviour."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour, self.requests, self.bodies = behaviour, 0, set[bytes]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lower = head.lower()
                size = 0
                if b"content-length:" in lower:
                    size = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
                    self.bodies.add(await reader.readexactly(size))
                self.requests += 1
                if not await self.behaviour(self.requests - 1, head.split(b" ")[1], writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def asked(server: Server, loop: Loop) -> Seen:
    async def body() -> Seen:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        seen = await ask(Target("127.0.0.1", port, "/", b"{}"), loop)
        listener.close()
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait_for(
                asyncio.gather(*left), 20
            )  # each handler notices that its client has left
        return seen

    return asyncio.run(body())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_this_machine_is_allowed(host: str) -> None:
    assert target_of(f"http://{host}:8000/p", body=b"{}").path == "/p"


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "example.org", "[2001:db8::1]", "127.0.0.1.example.org", "0.0.0.0"]
)
def test_another_machine_must_be_named(host: str) -> None:
    with pytest.raises(TargetError, match="--allow-host"):
        target_of(f"http://{host}/p", body=b"{}")
    with pytest.raises(TargetError, match="--allow-host"):
        target_of(f"http://{host}/p", allowed_host="other", body=b"{}")
    named = host.strip("[]")
    assert target_of(f"http://{host}/p", allowed_host=named, body=b"{}").host == named


@pytest.mark.parametrize("url", ["https://127.0.0.1/", "ftp://127.0.0.1/", "http://", "http:///x"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(TargetError, match="give a URL"):
        target_of(url, body=b"{}")


def test_a_closed_loop_stops_at_its_limit_of_requests() -> None:
    server = Server(fine)
    seen = asked(server, Loop(connections=4, seconds=60, max_requests=100))
    assert server.requests == 100 and seen.statuses == {200: 100} and len(seen.latencies) == 100


def test_an_open_loop_counts_latency_from_the_scheduled_time() -> None:
    """The first of 50 requests, due every 10 ms, is answered after a quarter of a second: the
    requests that became due meanwhile could not be sent, and their waiting time counts."""

    async def stalls_once(number: int, path: bytes, writer: asyncio.StreamWriter) -> bool:
        if number == 0:
            await asyncio.sleep(0.25)
        return await fine(number, path, writer)

    seen = asked(Server(stalls_once), Loop(connections=1, seconds=0.5, rate=100))
    assert len(seen.latencies) == 50
    for i, latency in enumerate(seen.latencies[:25]):
        assert latency >= 0.25 - 0.01 * i - 1e-3


def test_answers_that_are_not_2xx_are_counted_and_have_no_latency() -> None:
    async def busy(number: int, path: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer(429 if number % 2 else 200))
        return True

    seen = asked(Server(busy), Loop(connections=1, seconds=60, max_requests=10))
    assert seen.statuses == {200: 5, 429: 5} and len(seen.latencies) == 5


def test_a_connection_that_is_lost_is_counted_and_replaced() -> None:
    async def leaves(number: int, path: bytes, writer: asyncio.StreamWriter) -> bool:
        if number == 3:
            return False
        return await fine(number, path, writer)

    seen = asked(Server(leaves), Loop(connections=1, seconds=60, max_requests=8))
    assert seen.statuses == {200: 7, BROKEN: 1}


def test_a_connection_closed_by_the_server_after_its_answer_is_replaced() -> None:
    async def once(number: int, path: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer(200))
        return False

    seen = asked(Server(once), Loop(connections=2, seconds=0.3, rate=100.0))
    # In an open loop, idle connections are closed by the server. A request sent before the client
    # notices is lost, but accounted for.
    assert seen.statuses.keys() <= {200, BROKEN} and seen.statuses[200] > 15
    assert seen.statuses.total() == 30 and seen.unsent == 0


def test_a_connection_replaced_after_the_last_answer_is_closed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = asyncio.BaseEventLoop.create_connection
    made: list[asyncio.Transport] = []

    async def late(loop: Any, *arguments: Any, **options: Any) -> Any:
        transport, protocol = await connect(loop, *arguments, **options)
        for _ in range(100 * len(made)):  # the answer arrives before the second connection is made
            await asyncio.sleep(0)
        made.append(transport)
        return transport, protocol

    async def once(number: int, path: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer(200))
        return False

    async def body() -> None:
        async with await asyncio.start_server(Server(once).serve, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            target = Target("127.0.0.1", port, "/", b"{}")
            seen = await ask(target, Loop(connections=1, seconds=0.01, rate=100.0))
            assert seen.statuses == {200: 1}
            assert [transport.is_closing() for transport in made] == [True, True]
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", late)
    asyncio.run(body())


def test_chunked_answers_are_counted_and_invalid_ones_are_broken() -> None:
    async def in_pieces(number: int, path: bytes, writer: asyncio.StreamWriter) -> bool:
        if number == 2:
            writer.write(b"this is no HTTP\r\n\r\n")
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b"3\r\n[1]\r\n", b"0\r\n", b"\r\n"):
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(piece)
        return True

    seen = asked(Server(in_pieces), Loop(connections=1, seconds=60, max_requests=6))
    assert seen.statuses == {200: 5, BROKEN: 1}


def test_quantiles_are_those_of_all_answers() -> None:
    ordered = [float(i) for i in range(1, 1001)]
    assert [quantile(ordered, q) for q in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    text = "\n".join(lines(Loop(1, 1.0), [Seen([1.0, 2.0], Counter({200: 2, 503: 1}), 0, 2.0)]))
    assert "2 2xx answers, 1 per second" in text and "1 answered 503" in text


@pytest.fixture
def url() -> Iterator[str]:
    """A server in a thread, for the command line."""
    loop = asyncio.new_event_loop()
    server = Server(fine)
    listener = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    assert b'{"x": [[1, 1]]}' in server.bodies  # from the metadata

    async def end() -> None:
        listener.close()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run_coroutine_threadsafe(end(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def test_a_load_is_recorded_as_a_run_that_can_be_shown_published_and_verified(
    url: str, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "run"
    options = ["--requests", "200", "-c", "4", "--rounds", "6", "--out", str(folder)]
    assert main(["load", url, *options]) == 0
    assert "1200 2xx answers" in capsys.readouterr().out
    run = Run.load(folder)
    (case,) = run.cases
    assert case.status == "ok" and case.workload == "load-models-m"
    assert case.protocol is not None and "first request" in case.protocol.cold_process
    timed = [sample for sample in run.samples if sample.kind == "timed"]
    assert [len(sample.warm.call_seconds) for sample in timed if sample.warm] == [200] * 6
    assert run.report.exists() and main(["show", str(folder)]) == 0
    assert main(["publish", str(folder), "--out", str(tmp_path / "out"), "--unsigned"]) == 0
    (snapshot,) = [
        path for path in (tmp_path / "out").iterdir() if path.is_dir() and len(path.name) == 64
    ]
    assert main(["verify", str(snapshot)]) == 0
    capsys.readouterr()


def test_a_target_that_does_not_answer_is_an_error(tmp_path: Path, capsys: Any) -> None:
    assert main(["load", "http://127.0.0.1:9/models/m", "--out", str(tmp_path / "run")]) == 2
    assert "does not answer" in capsys.readouterr().err
