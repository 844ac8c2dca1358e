"""One client against a real server: memory comes back, and others are answered meanwhile."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import serving_process

pytestmark = pytest.mark.slow

APP = """
import jax.numpy as jnp
import jax
from firstlight import serve

# None of the 100 requests of an attack is refused, however slow the machine.
@serve.model(
    inputs={"x": serve.Input("float32", ())}, buckets=(1,), max_queue_rows=128, deadline_seconds=60
)
def large(x):
    return {"y": x * jnp.ones(1_000_000, "float32")}

@serve.model(inputs={"x": serve.Input("float32", ())}, buckets=(1,), max_queue_rows=32)
def slow(x):
    return jax.lax.fori_loop(0, 5_000_000, lambda i, s: s + 1e-9, x)

@serve.model(inputs={"x": serve.Input("float32", (4,))})
def small(x):
    return 2 * x
"""
TOKEN = "0123456789abcdef"
MIB = 2**20
#: The server may keep a tenth more than before, within a minute.
SHARE, SECONDS = 1.1, 60.0


class Attacked(serving_process.Running):
    """A server, its memory, and its address as sockets take it."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "app.py").write_text(APP)
        # Longer than the server keeps memory after the last large answer was made.
        super().__init__(folder, "app.py", "--write-seconds", "7", *options)
        self.until("ready after")
        host, _, port = self.address.rpartition(":")
        self.where = host, int(port)
        self.memory = psutil.Process(self.process.pid).memory_info

    def connect(self) -> socket.socket:
        return socket.create_connection(self.where, timeout=30)

    def answered(self, model: str) -> int:
        """How many requests got a result."""
        text = self.ask("GET", "/metrics")[1]
        name = f'firstlight_requests_total{{code="200",model="{model}",version="1"}} '
        return int(float(text.split(name)[1].split("\n")[0]))

    def is_answering(self) -> bool:
        return self.ask("GET", "/v2/health/live")[0] == 200

    def comes_back(self, before: int) -> bool:
        """Whether memory returns to what it was before."""
        end = time.monotonic() + SECONDS
        while self.memory().rss > SHARE * before:
            if time.monotonic() > end:
                return False
            time.sleep(0.25)  # the operating system has no event for it
        return True


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    running = Attacked(tmp_path_factory.mktemp("attacked"))
    for _ in range(3):  # what the first answers allocate stays
        running.ask("POST", "/models/large", {"x": [1]})
        running.ask("POST", "/models/slow", {"x": [1]})
        running.ask("POST", "/models/small", {"x": [[1, 2, 3, 4]]})
    yield running
    running.stop()


def post(path: str, body: bytes, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: h", f"content-length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


#: A request whose answer has 4 MB.
LARGE = post(
    "/v2/models/large/infer",
    json.dumps(
        {
            "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5]}],
            "parameters": {"binary_data_output": True},
        }
    ).encode(),
)


def endless_line(server: Attacked, stack: ExitStack) -> None:
    client = stack.enter_context(server.connect())
    client.sendall(b"GET / HTTP/1.1\r\na: ")
    try:
        for _ in range(64):
            client.sendall(b"x" * 2**20)
    except OSError:
        return
    assert b" 431 " in client.recv(100)


def answers_that_nobody_reads(server: Attacked, stack: ExitStack) -> None:
    before = server.answered("large")
    for _ in range(100):
        stack.enter_context(server.connect()).sendall(LARGE)
    while server.answered("large") < before + 100:
        pass


def pipelined_and_unread(server: Attacked, stack: ExitStack) -> None:
    before = server.answered("large")
    stack.enter_context(server.connect()).sendall(LARGE * 250)
    for _ in range(20):
        assert server.is_answering()
    assert server.answered("large") < before + 5


def clients_that_leave(server: Attacked, stack: ExitStack) -> None:
    before = server.answered("slow")
    for _ in range(200):
        with server.connect() as client:
            client.sendall(post("/models/slow", b'{"x": [1.5]}'))
    assert server.ask("POST", "/models/slow", {"x": [1]})[0] == 200
    assert server.answered("slow") < before + 100


@pytest.mark.parametrize(
    "attack", [endless_line, answers_that_nobody_reads, pipelined_and_unread, clients_that_leave]
)
def test_memory_comes_back_and_others_are_answered(
    server: Attacked, attack: Callable[[Attacked, ExitStack], None]
) -> None:
    before = server.memory().rss
    with ExitStack() as stack:
        attack(server, stack)
        assert server.is_answering()
        peak = server.memory().rss
        assert server.ask("POST", "/models/small", {"x": [[1, 2, 3, 4]]})[0] == 200
        # Its connections are still open, except where the server has aborted them.
        assert server.comes_back(before), (before / MIB, server.memory().rss / MIB)
    assert peak < before + 700 * MIB


def test_bodies_without_the_token_are_not_read(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    server = Attacked(tmp_path, "--token-file", str(token))
    right = {"authorization": f"Bearer {TOKEN}"}
    with ExitStack() as stack:
        before = server.memory().rss
        for _ in range(8):
            client = stack.enter_context(server.connect())
            head = f"POST /models/small HTTP/1.1\r\nhost: h\r\ncontent-length: {64 * MIB}\r\n\r\n"
            client.sendall(head.encode())
            assert b" 401 " in client.recv(100)
        body = json.dumps({"x": [[1, 2, 3, 4]] * 32}).encode()
        large = {"x": [[1, 2, 3, 4]], "pad": ["x" * 100_000]}  # a body that counts
        assert server.ask("POST", "/models/small", json.loads(body), right)[0] == 200
        assert server.ask("POST", "/models/small", large, right)[0] == 400
        assert server.memory().rss < before + 20 * MIB
    server.stop()
