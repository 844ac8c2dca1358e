"""Synthetic requests before the first real one, so that all code on its path has already run.

They pass through the same connection, protocol, engine and executables, with separate metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from firstlight.serve.app import App
from firstlight.serve.compiled_models import Loaded, example_rows
from firstlight.serve.engine import Engine
from firstlight.serve.http_server import Connection, Server
from firstlight.serve.models import Models
from firstlight.telemetry.values import Values

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
        self._connection = Connection(Server(app))
        self._connection.connection_made(_NullTransport())

    async def ask(self, request: bytes) -> None:
        """Send a request and wait for its answer."""
        receive(self._connection, request)
        while not self.engine.idle:
            await asyncio.sleep(0)


def receive(connection: Connection, request: bytes) -> None:
    """Pass bytes to a connection as a socket would."""
    left = memoryview(request)
    while left:
        place = connection.get_buffer(len(left))
        part, left = left[: len(place)], left[len(place) :]
        place[: len(part)] = part
        connection.buffer_updated(len(part))


async def rehearse(loaded: Sequence[Loaded]) -> None:
    """Answer example requests of every model, in plain JSON and both formats of the protocol."""
    loopback = Loopback()
    for one in loaded:
        loopback.models.put(one)
        for request in _repeated(one):
            await loopback.ask(request)
    loopback.engine.close()


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
