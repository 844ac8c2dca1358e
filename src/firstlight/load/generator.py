"""Sends requests in a closed or an open loop, bounded in number and time.

Closed: every connection sends its next request on receipt of an answer, so a slow server gets
fewer requests. Open: requests are scheduled in advance, and latency counts from the scheduled time
whether or not a connection was free, so waiting for a slow server is included.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from firstlight.load.target import Target

MAX_SECONDS, MAX_REQUESTS = 3600.0, 10_000_000
#: The status of a request without an answer.
BROKEN = 0
_EARLY = 0.002
_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Loop:
    """The kind of load: open with `rate` requests per second, closed if `rate` is None."""

    connections: int
    seconds: float
    rate: float | None = None
    max_requests: int = MAX_REQUESTS


@dataclass
class Seen:
    """The answers to a load, in the order of their arrival."""

    latencies: list[float] = field(default_factory=list)  # of 2xx answers, in seconds
    statuses: Counter[int] = field(default_factory=Counter)
    unsent: int = 0  # due in an open loop, but never sent
    seconds: float = 0.0
    refusals: list[float] = field(default_factory=list)  # latencies of 429 answers


class _Connection(asyncio.Protocol):
    """One request at a time. Calls `done` with the status of each answer, and `left` when the
    server closes an idle connection."""

    def __init__(
        self, done: Callable[[_Connection, int], None], left: Callable[[_Connection], None]
    ) -> None:
        self.done, self.left = done, left
        self.transport: asyncio.Transport | None = None
        self.due = 0.0
        self._data = b""  # an incomplete head, or the end of a chunked body
        self._in_body = self._in_chunks = False
        self._missing = 0  # bytes of the body
        self._status = BROKEN
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, request: bytes, due: float) -> None:
        assert self.transport is not None
        self.due, self.busy = due, True
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._data += data
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._read_head(self._data[:end].lower()):
                assert self.transport is not None
                self.transport.abort()  # not an HTTP answer
                return
            data, self._data = self._data[end + 4 :], b""
        if self._in_chunks:
            self._data = (self._data + data)[-len(_LAST_CHUNK) :]
            is_over = self._data in (_LAST_CHUNK, _LAST_CHUNK[2:])
        else:
            self._missing -= len(data)
            is_over = self._missing <= 0
        if is_over:
            self._data, self._in_body, self.busy = b"", False, False
            self.done(self, self._status)

    def _read_head(self, head: bytes) -> bool:
        length = re.search(rb"\r\ncontent-length: *(\d+)", head)
        status = head[9:12]
        if not status.isdigit():
            return False
        self._status = int(status)
        self._in_body, self._in_chunks = True, b"\r\ntransfer-encoding: chunked" in head
        self._missing = int(length[1]) if length else 0
        return True

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        if self.busy:
            self.busy = False
            self.done(self, BROKEN)
        else:
            self.left(self)


async def ask(target: Target, loop: Loop) -> Seen:
    """Send requests until the time or their number is up, then wait for the answers."""
    return await _Asking(target, loop).run()


class _Asking:
    """One run of the generator."""

    def __init__(self, target: Target, loop: Loop) -> None:
        self._target, self._loop, self._seen = target, loop, Seen()
        self._request = target.request
        self._free: list[_Connection] = []
        self._due: deque[float] = deque()  # times at which requests should have left
        self._sent = self._waiting = 0
        self._ended = asyncio.Event()
        self._replacing: set[asyncio.Task[None]] = set()
        self._begin = self._stop = 0.0

    async def run(self) -> Seen:
        for _ in range(self._loop.connections):
            self._free.append(await self._connected())
        self._begin = time.perf_counter()
        self._stop = self._begin + self._loop.seconds
        if self._loop.rate is None:
            while self._free and self._sent < self._loop.max_requests:
                self._send(self._free.pop(), time.perf_counter())
        else:
            await self._keep_time(self._loop.rate)
        self._seen.unsent = len(self._due)
        self._ended.clear()
        if self._waiting:
            await asyncio.wait_for(self._ended.wait(), self._loop.seconds + 60.0)
        self._seen.seconds = time.perf_counter() - self._begin
        if self._replacing:
            await asyncio.wait(self._replacing)
        free, self._free = self._free, []
        for connection in free:
            if connection.transport is not None:
                connection.transport.abort()
        return self._seen

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(
            lambda: _Connection(self._done, self._left), self._target.host, self._target.port
        )
        return made

    async def _keep_time(self, rate: float) -> None:
        """Make requests due at equal intervals; each is sent as soon as a connection is free."""
        count = min(int(self._loop.seconds * rate), self._loop.max_requests)
        for i in range(count):
            due = self._begin + i / rate
            # Timers are about a millisecond late, which would count as latency of the server.
            while (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait - _EARLY if wait > 2 * _EARLY else 0)
            if not i % 64:
                await asyncio.sleep(0)
            if self._free:
                self._send(self._free.pop(), due)
            else:
                self._due.append(due)
        while self._due and time.perf_counter() < self._stop + self._loop.seconds:
            await asyncio.sleep(0.001)

    def _send(self, connection: _Connection, due: float) -> None:
        self._sent += 1
        self._waiting += 1
        connection.send(self._request, due)

    def _done(self, connection: _Connection, status: int) -> None:
        now = time.perf_counter()
        self._seen.statuses[status] += 1
        if 200 <= status < 300:
            self._seen.latencies.append(now - connection.due)
        elif status == HTTPStatus.TOO_MANY_REQUESTS:
            self._seen.refusals.append(now - connection.due)
        self._waiting -= 1
        if connection.transport is None or connection.transport.is_closing():
            self._begin_replacing()
            return
        self._next(connection, now)

    def _left(self, connection: _Connection) -> None:
        """The server has closed an idle connection."""
        if connection in self._free:
            self._free.remove(connection)
            self._begin_replacing()

    def _begin_replacing(self) -> None:
        task = asyncio.get_running_loop().create_task(self._replace())
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self) -> None:
        """Open a connection in place of one that the server closed."""
        try:
            connection = await self._connected()
        except OSError:
            self._end_if_done()
            return
        self._next(connection, time.perf_counter())

    def _next(self, connection: _Connection, now: float) -> None:
        if self._loop.rate is None:
            if now < self._stop and self._sent < self._loop.max_requests:
                self._send(connection, now)
                return
        elif self._due:
            self._send(connection, self._due.popleft())
            return
        self._free.append(connection)
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._waiting:
            self._ended.set()
