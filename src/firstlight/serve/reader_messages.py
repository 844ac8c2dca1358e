"""Messages between reader processes and the process that owns the device.

They travel over a socket pair that no other process can open, so both ends are trusted.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

_LENGTH = struct.Struct("<I")


class _Message(msgspec.Struct, array_like=True, tag=True):
    pass


class Infer(_Message):
    """Rows for a version of a model, in the order of its inputs."""

    number: int  # of the request, on this socket
    version: int  # as `Setup` numbers it
    rows: int
    sizes: tuple[int, ...]  # of the variable axes
    arrays: list[memoryview]
    arrived: float
    deadline: float
    trace_headers: dict[bytes, bytes]


class Pass(_Message):
    """A whole request, for the app to answer."""

    number: int
    method: bytes
    path: bytes
    headers: dict[bytes, bytes]
    body: memoryview
    arrived: float


class Gone(_Message):
    """Requests whose clients have left."""

    numbers: list[int]


class Ready(_Message):
    """The reader has its first `Setup` and accepts requests."""


class Setup(_Message):
    """A pickled `ReaderSetup` with the versions served from now on."""

    pickled: bytes


class Computed(_Message):
    """The outputs of an `Infer`."""

    number: int
    outputs: list[memoryview]


class Answered(_Message):
    """The answer to a `Pass`, or a refusal."""

    number: int
    status: int
    body: bytes
    content_type: bytes
    more: bytes


class Again(_Message):
    """The version is not served any more: parse the request again with the last `Setup`."""

    number: int


class Drain(_Message):
    """Answer pending requests, accept no new ones, and end."""


Message = Infer | Pass | Gone | Ready | Setup | Computed | Answered | Again | Drain
_decoder = msgspec.msgpack.Decoder(Message)
_encode = msgspec.msgpack.Encoder().encode


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Link(asyncio.Protocol):
    """One end of the socket pair."""

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._received, self._lost = received, lost
        self._transport: Any = None
        self._rest: list[bytes] = []  # the beginning of a message
        self._missing = 0  # bytes until it may be whole

    def send(self, message: Message) -> None:
        if self._transport is None:
            return
        body = _encode(message)
        self._transport.write(_LENGTH.pack(len(body)) + body)

    def close(self) -> None:
        """Close after sending what is buffered."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._rest)
        start = self._read(memoryview(data))
        self._rest = [data[start:]] if start < len(data) else []

    def _read(self, view: memoryview) -> int:
        """Pass on the complete messages; returns where the next one begins."""
        start = 0
        while len(view) - start >= _LENGTH.size:
            begin = start + _LENGTH.size
            end = begin + _LENGTH.unpack_from(view, start)[0]
            if end > len(view):
                self._missing = end - len(view)
                return start
            self._received(_decoder.decode(view[begin:end]))
            start = end
        self._missing = 1
        return start
