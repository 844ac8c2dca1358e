"""SIGTERM loses no request: a rolling update, kept connections, and the backlog."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from serving_process import Running

from firstlight import warmstart
from firstlight.warmstart.frozen import freezing

pytestmark = pytest.mark.slow

#: Frozen, so that a server is ready without importing JAX.
BODY = json.dumps({"x": [[1.0, 2.0]]}).encode()
REQUEST = b"POST /models/twice HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)
CLIENTS, REQUESTS = 16, 5000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("draining")
    row = jax.ShapeDtypeStruct((1, 2), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(freezing, "prove", lambda frozen, proofs: frozen)
        warmstart.freeze(lambda x: {"y": 2 * x}, row, path=made / "twice.frozen", buckets=(1, 4))
    yield made


def started(folder: Path, *options: str) -> Running:
    server = Running(folder, "twice.frozen", *options)
    server.until("ready after")
    return server


class Balancer:
    """Sends each request to a replica that was ready a second ago at most; it never retries."""

    def __init__(self, replicas: list[Running]) -> None:
        self.replicas, self.ready = replicas, list[Running]()
        self.changed = asyncio.Condition()
        self.done = self.failed = 0
        self._turn = itertools.count()
        self._idle: dict[Running, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}

    async def watch(self) -> None:
        while True:
            found = [one for one in self.replicas if await self._is_ready(one)]
            async with self.changed:
                self.ready = found
                self.changed.notify_all()
            await asyncio.sleep(1.0)

    async def until(self, ready: list[Running]) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.ready == ready)

    async def _is_ready(self, replica: Running) -> bool:
        try:
            reader, writer = await asyncio.open_connection(*replica.address.split(":"))
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
        except OSError:  # it has ended
            return False
        return b" 200 " in answer[:20]

    async def ask(self) -> None:
        """One request, on a kept connection if there is one."""
        replica = self.ready[next(self._turn) % len(self.ready)]
        idle = self._idle.setdefault(replica, [])
        while idle and idle[-1][0].at_eof():
            idle.pop()[1].close()
        try:
            pair = (
                idle.pop() if idle else await asyncio.open_connection(*replica.address.split(":"))
            )
            reader, writer = pair
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            right = await reader.readexactly(size) == b'{"y":[[2.0,4.0]]}'
            self.failed += b" 200 OK" not in head or not right
            if b"connection: close" in head:
                writer.close()
            else:
                idle.append(pair)
        except (OSError, asyncio.IncompleteReadError):
            self.failed += 1
        self.done += 1

    def close(self) -> None:
        for _, writer in itertools.chain(*self._idle.values()):
            writer.close()

    async def client(self, rolled: asyncio.Event) -> None:
        while self.done < REQUESTS or not rolled.is_set():
            await self.ask()
            await asyncio.sleep(0.02)  # its own work


def test_a_rolling_update_of_two_replicas_fails_no_request(folder: Path) -> None:
    async def body() -> Balancer:
        loop = asyncio.get_running_loop()
        options = ("--drain-delay", "2")
        old = [started(folder, *options), started(folder, *options)]
        balancer, rolled = Balancer(list(old)), asyncio.Event()
        watching = asyncio.create_task(balancer.watch())
        await balancer.until(old)
        clients = [asyncio.create_task(balancer.client(rolled)) for _ in range(CLIENTS)]
        for position in range(2):
            new = await loop.run_in_executor(None, lambda: started(folder, *options))
            balancer.replicas.append(new)
            await balancer.until(balancer.replicas)
            assert await loop.run_in_executor(None, old[position].stop) == 0
            balancer.replicas.remove(old[position])
        rolled.set()
        await asyncio.gather(*clients)
        watching.cancel()
        balancer.close()
        for replica in balancer.replicas:
            replica.stop()
        return balancer

    balancer = asyncio.run(asyncio.wait_for(body(), 120))
    assert balancer.failed == 0 and balancer.done >= REQUESTS


def test_kept_connections_get_an_answer_that_ends_them(folder: Path) -> None:
    server = started(folder)
    connections = [http.client.HTTPConnection(server.address, timeout=30) for _ in range(16)]
    for connection in connections:
        connection.request("POST", "/models/twice", BODY)
        assert connection.getresponse().read()
    server.process.send_signal(signal.SIGTERM)
    server.until("draining")
    for connection in connections:
        connection.request("POST", "/models/twice", BODY)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["connection"] == "close"
        assert json.loads(answer.read()) == {"y": [[2, 4]]}
    assert server.ended() == 0


def test_connections_in_the_backlog_are_answered(folder: Path) -> None:
    """Nothing accepts them before the signal: the process is stopped meanwhile."""
    server = started(folder)
    host, _, port = server.address.rpartition(":")
    os.kill(server.process.pid, signal.SIGSTOP)
    clients = [socket.create_connection((host, int(port)), timeout=30) for _ in range(100)]
    for client in clients:
        client.sendall(REQUEST)
    server.process.send_signal(signal.SIGTERM)
    os.kill(server.process.pid, signal.SIGCONT)
    for client in clients:
        with client:
            assert b" 200 OK" in client.recv(1000)
    assert server.ended() == 0


def test_a_server_that_drains_is_not_ready_and_answers(folder: Path) -> None:
    server = started(folder, "--drain-delay", "1")
    server.process.send_signal(signal.SIGTERM)
    server.until("not ready, and answering for 1 s more")
    assert server.ask("GET", "/v2/health/ready")[0] == 503
    assert server.ask("GET", "/v2/health/live")[0] == 200
    assert server.ask("POST", "/models/twice", {"x": [[1, 2]]})[0] == 200
    assert server.ended() == 0
