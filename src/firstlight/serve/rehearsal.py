"""Synthetic requests before the first real one, so that all code on its path has already run.

They pass through a socket and the same protocol, engine and executables, with separate metrics.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from firstlight.serve.app import App
from firstlight.serve.compiled_models import Loaded, example_rows
from firstlight.serve.engine import Engine
from firstlight.serve.http_server import Connection, Server
from firstlight.serve.models import Models
from firstlight.telemetry.values import Values

_LENGTH = re.compile(rb"content-length: (\d+)")
#: Requests of each format, and the time after which fewer are enough.
_MAX_REQUESTS, _MAX_SECONDS = 32, 0.2


class _NullTransport:
    """A transport that discards what is written."""

    def write(self, data: Any) -> None:
        pass

    def writelines(self, parts: object) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Loopback:
    """An in-memory connection to models, with a separate engine and metrics."""

    def __init__(self) -> None:
        self.values = Values()
        self.engine = Engine(self.values)
        self.models = Models(self.engine, self.values, lambda: 1.0)
        app = App(self.models, self.values)
        app.ready = True
        self._server, self._connection = Server(app), Connection(Server(app))
        self._connection.connection_made(_NullTransport())

    async def ask(self, request: bytes) -> None:
        """Pass in a request and wait until it has been answered."""
        receive(self._connection, request)
        while not self.engine.idle:
            await asyncio.sleep(0)

    def close(self) -> None:
        self._server.close()
        self.engine.close()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of these models that is connected by a real socket."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._server.connection, "127.0.0.1", 0)
        try:
            address = listener.sockets[0].getsockname()
            _, made = await loop.create_connection(Client, *address[:2])
            try:
                yield made
            finally:
                made.transport.abort()
        finally:
            listener.close()


class Client(asyncio.Protocol):
    """Sends one request after the other."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._seen, self._answered = b"", asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._seen += data
        head, found, body = self._seen.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if found and (length is None or len(body) >= int(length[1])):
            self._answered.set()

    def connection_lost(self, _: Exception | None) -> None:
        self._answered.set()

    async def ask(self, request: bytes) -> None:
        """Send a request and wait for its answer."""
        self._seen = b""
        self._answered.clear()
        self.transport.write(request)
        await self._answered.wait()


def receive(connection: Connection, request: bytes) -> None:
    """Pass bytes to a connection as a socket would."""
    left = memoryview(request)
    while left:
        place = connection.get_buffer(len(left))
        part, left = left[: len(place)], left[len(place) :]
        place[: len(part)] = part
        connection.buffer_updated(len(part))


async def rehearse(loaded: Sequence[Loaded]) -> dict[tuple[str, str], float]:
    """Answer example requests of every model, in plain JSON and both formats of the protocol.

    Returns:
        The median latency in seconds of each name and version, over a real socket.
    """
    loopback, medians = Loopback(), {}
    for one in loaded:
        loopback.models.put(one)
        async with loopback.client() as client:
            seconds = []
            for request in _repeated(one):
                begin = time.perf_counter()
                await client.ask(request)
                seconds.append(time.perf_counter() - begin)
        medians[one.model.name, one.model.version] = statistics.median(seconds)
    loopback.close()
    return medians


def _repeated(loaded: Loaded) -> Iterator[bytes]:
    """Requests of all formats, limited in number and time."""
    end = time.perf_counter() + _MAX_SECONDS
    for request in _requests(loaded) * _MAX_REQUESTS:
        yield request
        if time.perf_counter() > end:
            return


def _requests(loaded: Loaded) -> list[bytes]:
    """One request of each format, with the example that the executables were tried with."""
    signature, name = loaded.signature, loaded.model.name
    arrays = example_rows(signature, 1, signature.lanes[0])
    named = list(zip(signature.inputs, arrays, strict=True))
    plain = {tensor.name: array.tolist() for tensor, array in named}
    as_json, as_bytes = [], []
    for tensor, array in named:
        shape = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape)}
        as_json.append({**shape, "data": array.ravel().tolist()})
        as_bytes.append({**shape, "parameters": {"binary_data_size": array.nbytes}})
    wanted = {"binary_data_output": True}
    head = msgspec.json.encode({"inputs": as_bytes, "parameters": wanted})
    tail = b"".join(array.tobytes() for array in arrays)
    length = b"inference-header-content-length: %d\r\n" % len(head)
    return [
        _post(f"/models/{name}", msgspec.json.encode(plain)),
        _post(f"/v2/models/{name}/infer", msgspec.json.encode({"inputs": as_json})),
        _post(f"/v2/models/{name}/infer", head + tail, length),
    ]


def _post(path: str, body: bytes, more: bytes = b"") -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\n%s%s\r\n%s" % (path.encode(), length, more, body)
