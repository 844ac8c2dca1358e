"""Requests passed on to replicas, over real sockets in one event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from firstlight.cluster.serving_front import Front
from firstlight.cluster.serving_replica import Report
from firstlight.serve.http_server import Limits, Server

Answer = Callable[[bytes], bytes | None]  # None: the connection ends


class Cluster:
    """A front, and replicas that answer whole requests by functions."""

    def __init__(self) -> None:
        self.front = Front()
        self.seen: dict[str, list[bytes]] = {}
        self.left: asyncio.Queue[str] = asyncio.Queue()
        self._open: list[Any] = []
        self._talks: set[Any] = set()

    async def open(self, **replicas: Answer) -> None:
        loop = asyncio.get_running_loop()
        self.server = Server(cast(Any, self.front), Limits())
        self.listener = await loop.create_server(self.server.connection, "127.0.0.1", 0)
        self.address = self.listener.sockets[0].getsockname()[:2]
        reports = [await self._replica(name, answer) for name, answer in replicas.items()]
        self.front.update(reports)

    async def _replica(self, name: str, answer: Answer) -> Report:
        self.seen[name] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._talks.add(asyncio.current_task())
            while head := await _until_end(reader):
                size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                self.seen[name].append(head + await reader.readexactly(size))
                said = answer(self.seen[name][-1])
                if said is None:
                    break
                writer.write(said)
                if not said:  # it never answers
                    with pytest.raises(ConnectionResetError):
                        await reader.read(1)
                    self.left.put_nowait(name)
                    break
            writer.close()
            with suppress(ConnectionResetError):
                await writer.wait_closed()

        made = await asyncio.start_server(talk, "127.0.0.1", 0)
        self._open.append(made)
        host, port = made.sockets[0].getsockname()
        return Report(name, host, port, 0, 0, 0, 0.0)

    async def ask(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    async def close(self) -> None:
        self.listener.close()
        self.server.close()
        self.front.update([])
        for opened in self._open:
            opened.close()
        await asyncio.gather(*self._talks)


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def run_in(body: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        cluster = Cluster()
        await body(cluster)
        await cluster.close()

    asyncio.run(run())


POST = b"POST /models/m?q=1 HTTP/1.1\r\nhost: h\r\nx-own: 5\r\nconnection: close\r\n"
POST += b"content-length: 4\r\n\r\nbody"


def answering(text: bytes, more: bytes = b"") -> Answer:
    return lambda _: b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\n%scontent-length: %d\r\n\r\n%s" % (
        more, len(text), text,
    )  # fmt: skip


def test_requests_and_answers_are_passed_on_whole() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.open(one=answering(b"result", b"inference-header-content-length: 3\r\n"))
        answer = await cluster.ask(POST)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\n")
        assert b"inference-header-content-length: 3\r\n" in answer
        assert answer.endswith(b"\r\n\r\nresult")
        [seen] = cluster.seen["one"]
        assert seen.startswith(b"POST /models/m HTTP/1.1\r\n") and seen.endswith(b"\r\n\r\nbody")
        assert b"x-own: 5\r\n" in seen and b"connection" not in seen

    run_in(body)


def test_a_request_lost_by_a_replica_is_answered_by_another() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.open(dying=lambda _: None, living=answering(b"result"))
        for _ in range(4):
            assert (await cluster.ask(POST)).endswith(b"result")
        assert len(cluster.seen["living"]) == 4 and cluster.seen["dying"]
        cluster.front.update([])
        assert (await cluster.ask(POST)).startswith(b"HTTP/1.1 503 ")

    run_in(body)


def test_requests_that_no_replica_survives_end_with_503() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.open(one=lambda _: None, two=lambda _: None)
        answer = await cluster.ask(POST)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in answer
        assert len(cluster.seen["one"]) + len(cluster.seen["two"]) == 4

    run_in(body)


def test_the_connection_to_the_replica_is_reset_when_the_client_leaves() -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.open(slow=lambda _: b"")
        sweeping = asyncio.ensure_future(cluster.front.drop_abandoned())
        _, writer = await asyncio.open_connection(*cluster.address)
        writer.write(POST)
        while not cluster.seen["slow"]:
            await asyncio.sleep(0)
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        assert await asyncio.wait_for(cluster.left.get(), 60) == "slow"
        sweeping.cancel()

    run_in(body)


def test_metrics_are_those_of_all_replicas_and_of_none_without_the_token() -> None:
    async def body(cluster: Cluster) -> None:
        text = b"# TYPE a gauge\na 1.0\n"
        await cluster.open(one=answering(text), two=answering(text))
        asked = b"GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n"
        answer = await cluster.ask(asked)
        assert b'a{replica="one"} 1.0\n' in answer and b'a{replica="two"} 1.0\n' in answer
        refusing = await cluster._replica(
            "one", lambda _: b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\n{}"
        )
        cluster.front.update([])
        cluster.front.update([refusing])
        assert (await cluster.ask(asked)).startswith(b"HTTP/1.1 401 ")

    run_in(body)
