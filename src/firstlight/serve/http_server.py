"""HTTP/1.1 on asyncio: httptools parses, this module enforces limits and writes answers.

A request is one object and one callback, without a task or a scope: in an ASGI server those are
half of the cost of a request (docs/architecture.md has the figures).
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import time
from collections import deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
import msgspec

from firstlight.errors import FirstlightError
from firstlight.serve.app import JSON, Exchange, Handler
from firstlight.serve.compiled_models import aligned_bytes
from firstlight.serve.jobs import Source

_HEADS = {
    status.value: b"HTTP/1.1 %d %s\r\ncontent-type: " % (status, status.phrase.encode())
    for status in HTTPStatus
}
#: Bodies of at least so many bytes are received into memory that XLA can use without copying, and
#: count towards the sum of all bodies; smaller ones are bounded by the number of connections.
_LARGE = 2**16
#: Size of the read buffer for everything else.
_READ_BYTES = 2**16
#: Pipelined requests per connection.
_MAX_AHEAD = 16
#: So long after the last large body or answer, memory that the C library keeps is given back.
_KEEP_MEMORY_SECONDS = 5.0


@dataclass(frozen=True)
class Limits:
    """Limits per client, and for all clients together."""

    body_bytes: int = 64 * 2**20
    all_bodies_bytes: int = 512 * 2**20
    head_bytes: int = 16 * 2**10
    connections: int = 4096
    request_seconds: float = 20.0  # from the first byte of a request to its last
    idle_seconds: float = 75.0
    write_seconds: float = 20.0  # without the client taking a byte of an answer
    unsent_bytes: int = 256 * 2**20  # of answers that clients have not taken, summed over clients


class AddressError(FirstlightError):
    """An address on which the server cannot listen."""

    def __init__(self, where: str, option: str = "--port", error: OSError | None = None) -> None:
        why = "" if error is None else f": {error.strerror or error}"
        super().__init__(
            f"cannot listen on {where}{why}. Choose another {option}, or 0 for any free port."
        )


def address(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


class Server:
    """Connections of one listening socket."""

    def __init__(self, app: Handler, limits: Limits | None = None) -> None:
        self.app, self.limits = app, limits or Limits()
        self.connections: set[Connection] = set()
        self.body_bytes = 0
        self.draining = False
        self.behind: set[Connection] = set()  # those whose clients do not take their answers
        self.last_large = math.inf  # when the last large body or answer passed
        # One for all connections: its content is parsed before anything else is read.
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self._sweep: asyncio.TimerHandle | None = None

    def connection(self) -> Connection:
        """Make the protocol of a new connection."""
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(1.0, self._close_slow)
        return Connection(self)

    def drain(self, idle_seconds: float = 0.0) -> None:
        """Close every connection after its next answer, or once it has been idle for so long."""
        self.draining = True
        for connection in list(self.connections):
            connection.close_if_idle(idle_seconds)

    def bound_unsent(self) -> None:
        """Abort connections, that without progress for the longest time first, within the bound."""
        unsent = {connection: connection.unsent_bytes for connection in self.behind}
        total = sum(unsent.values())
        for connection in sorted(self.behind, key=lambda c: (c.progressed, -unsent[c]))[:-1]:
            if total <= self.limits.unsent_bytes:
                return
            total -= unsent[connection]
            connection.abort()

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self.connections):
            connection.abort()

    def _close_slow(self) -> None:
        now = time.perf_counter()
        for connection in list(self.connections):
            connection.check_time(now)
        if self.behind or self.body_bytes:
            self.last_large = now  # they hold memory still
        elif now - self.last_large > _KEEP_MEMORY_SECONDS:
            self.last_large = math.inf
            give_freed_memory_back()
        self._sweep = asyncio.get_running_loop().call_later(1.0, self._close_slow)


class Request(Exchange):
    """An exchange on a connection."""

    __slots__ = ("connection", "held", "keep_alive", "size")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.headers = {}
        self.path = self.method = b""
        self.body = b""
        self.size = self.held = 0  # bytes of the body that have arrived, and that are in the sum
        self.keep_alive = True

    def is_gone(self) -> bool:
        return self.connection.has_left

    def source(self) -> Source:
        return self.connection.source

    def answer(
        self, status: int, parts: list[Any], content_type: bytes = JSON, more: bytes = b""
    ) -> None:
        self.connection.write(self, status, parts, content_type, more)


class Connection(asyncio.BufferedProtocol):
    """Parses what a client sends, and answers one request after the other.

    The event loop asks for a buffer to read into: a large body is copied once, by the kernel, to
    the memory from which the model reads it.
    """

    def __init__(self, server: Server) -> None:
        self.server, self.app, self.limits = server, server.app, server.limits
        self.transport: Any = None
        self.source = Source()
        self.parser = httptools.HttpRequestParser(self)
        self.request: Request | None = None  # being received
        self.answering = False
        self.ahead: deque[Request] = deque()
        self.since = self.progressed = time.perf_counter()  # start of the current wait
        self.has_left = False  # the client
        self._head_bytes = 0
        self._framing_bytes = 0  # received since the last part of a message that was complete
        self._advanced = self._head_is_complete = False
        self._held_bytes = 0  # of bodies without an answer yet
        self._written_bytes = self._sent_bytes = 0
        self._body: list[bytes] = []
        self._large: memoryview | None = None  # where a large body is received
        self._refused = self._is_behind = False

    # --- called by the event loop -----------------------------------------------------------------

    def connection_made(self, transport: object) -> None:
        self.transport = transport
        connections = self.server.connections
        connections.add(self)
        if len(connections) > self.limits.connections:
            self._refuse(503, "there are too many connections.", b"retry-after: 1\r\n")

    def get_buffer(self, _: int) -> memoryview:
        """The buffer for the next bytes; that of a large body ends with the body."""
        if self._large is None or self.request is None:
            return self.server.read_buffer
        return self._large[self.request.size :]

    def buffer_updated(self, size: int) -> None:
        if self._refused:
            return
        if self._large is not None and self.request is not None:
            self._large_body_grew(self.request, size)
            return
        data, framing = self.server.read_buffer[:size], self._framing_bytes + size
        try:
            if framing > self.limits.head_bytes:
                self._parse_in_pieces(data)
                return
            self._advanced = False
            self.parser.feed_data(data)
            self._framing_bytes = 0 if self._advanced else framing
        except httptools.HttpParserUpgrade:
            pass  # the request has been answered, in HTTP/1.1
        except httptools.HttpParserError:
            self._refuse(400, "this is not a request of HTTP/1.1.")

    def _parse_in_pieces(self, data: memoryview) -> None:
        """Feed the parser, which keeps an incomplete line, and grows it in quadratic time.

        So bytes of heads, chunk sizes and trailers are counted before they are parsed.
        """
        most = self.limits.head_bytes
        while data and not self._refused:
            room = most - self._framing_bytes
            if not room:
                self._head_too_large()
                return
            piece, data = data[:room], data[room:]
            self._advanced = False
            self.parser.feed_data(piece)
            self._framing_bytes = 0 if self._advanced else self._framing_bytes + len(piece)

    def _large_body_grew(self, request: Request, size: int) -> None:
        self._count_body(request, size)
        if self._large is not None and request.size == len(self._large):
            # The old parser has not seen the body, and would take the next request for it.
            self.parser = httptools.HttpRequestParser(self)
            self.on_message_complete()

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None
        self.server.connections.discard(self)
        self.server.behind.discard(self)
        self._release(self._held_bytes)
        self._leave()

    def eof_received(self) -> bool:
        """A client that ends its side has left: what it has asked for is not computed."""
        self._leave()
        return False

    def _leave(self) -> None:
        if not self.has_left:
            self.has_left = True
            self.ahead.clear()
            if self.answering:
                self.app.left()

    def pause_writing(self) -> None:
        """The client does not take its answers: it gets no further ones until it does."""
        if self.transport is None:
            return
        self._is_behind = True
        self.transport.pause_reading()
        self._note_progress(time.perf_counter())
        self.server.behind.add(self)
        self.server.bound_unsent()

    def resume_writing(self) -> None:
        self._is_behind = False
        self.server.behind.discard(self)
        if self.transport is None:
            return
        if not self.answering:
            self._next()
        elif len(self.ahead) < _MAX_AHEAD:
            self.transport.resume_reading()

    # --- called by the parser ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.request = Request(self)
        self.since = time.perf_counter()
        self._head_bytes = 0
        self._head_is_complete = False
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > self.limits.head_bytes:
            self._head_too_large()
        elif self.request is not None:
            self.request.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_is_complete:
            return  # a trailer: it came after all decisions about the request
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self.limits.head_bytes:
            self._head_too_large()
        elif self.request is not None:
            self.request.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        request = self.request
        self._advanced = self._head_is_complete = True
        if request is None or self._refused:
            return
        request.method = self.parser.get_method()
        # After an offer to upgrade, the parser stops.
        request.keep_alive = self.parser.should_keep_alive() and not self.parser.should_upgrade()
        request.path = request.path.partition(b"?")[0]
        if (objection := self.app.objection(request)) is not None:
            self._refuse(*objection)
            return
        length = request.headers.get(b"content-length")
        if length is not None:
            if not length.isdigit() or len(length) > 15 or int(length) > self.limits.body_bytes:
                self._too_large()
            elif int(length) >= _LARGE:
                self._large = _aligned(int(length), request.headers)
                if self.server.body_bytes + int(length) > self.limits.all_bodies_bytes:
                    self._too_many_large()
        if not self._refused and request.headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        request = self.request
        self._advanced = True
        if self._refused or request is None:
            return
        if self._large is not None:
            self._large[request.size : request.size + len(body)] = body
        else:
            self._body.append(body)
        self._count_body(request, len(body))

    def _count_body(self, request: Request, size: int) -> None:
        request.size += size
        if request.size >= _LARGE:
            self._release(request.held - request.size)
            request.held = request.size
        if request.size > self.limits.body_bytes:
            self._too_large()
        elif request.held and self.server.body_bytes > self.limits.all_bodies_bytes:
            self._too_many_large()

    def _release(self, size: int) -> None:
        self._held_bytes -= size
        self.server.body_bytes -= size

    def on_message_complete(self) -> None:
        request, self.request = self.request, None
        self._advanced = True
        if request is None or self._refused:
            return
        if self._large is not None:
            request.body, self._large = self._large, None
        else:
            parts = self._body
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            self._body = []
        request.arrived = self.since = time.perf_counter()
        if request.held:
            self.server.last_large = request.arrived
        if self.answering or self._is_behind:
            self.ahead.append(request)
            if len(self.ahead) >= _MAX_AHEAD:
                self.transport.pause_reading()
        else:
            self.answering = True
            self.app.handle(request)

    # --- answers ----------------------------------------------------------------------------------

    def write(
        self, request: Request, status: int, parts: list[Any], content_type: bytes, more: bytes
    ) -> None:
        transport = self.transport
        if transport is None:
            return
        self._release(request.held)
        self.answering = False
        if self.has_left:
            return  # the transport closes itself
        closing = self.server.draining or not request.keep_alive
        if closing:
            more += b"connection: close\r\n"
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        head = b"%s%s\r\n%scontent-length: %d\r\n\r\n" % (_HEADS[status], content_type, more, size)
        self._written_bytes += len(head) + (0 if request.method == b"HEAD" else size)
        if size >= _LARGE:
            self.server.last_large = request.arrived
        if request.method == b"HEAD":
            transport.write(head)
        elif len(parts) == 1:
            transport.write(head + parts[0])
        else:
            transport.writelines([head, *parts])
        self.since = time.perf_counter() if closing else request.arrived
        if self._refused:
            # The client may still be sending: closing now would reset the connection and lose the
            # answer. Further bytes are ignored, and `check_time` closes it.
            transport.write_eof()
        elif closing:
            transport.close()
        elif self.ahead:
            self._next()

    def _next(self) -> None:
        """Read on, and handle the next request, once the client takes its answers."""
        if self._is_behind:
            return
        self.transport.resume_reading()
        if self.ahead:
            self.answering = True
            # Through the event loop: pipelined requests must not recurse.
            asyncio.get_running_loop().call_soon(self._handle_ahead)

    def _handle_ahead(self) -> None:
        if self.has_left or self.transport is None:
            return
        if self._is_behind:  # it turned out after the answer had been handed to the event loop
            self.answering = False
        else:
            self.app.handle(self.ahead.popleft())

    # --- bounds -----------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """Close the connection if the client is too slow or idle. Called every second."""
        if self.transport is None:
            return
        self._note_progress(now)
        if self.unsent_bytes and now - self.progressed > self.limits.write_seconds:
            self.transport.abort()
            return
        if self.answering or self._is_behind:
            return
        waited = now - self.since
        if self.request is not None and waited > self.limits.request_seconds:
            self._refuse(408, "the request took too long to arrive.")
        elif self.request is None and waited > self.limits.idle_seconds:
            self.transport.close()
        elif self._refused and waited > 5.0:
            self.transport.abort()

    @property
    def unsent_bytes(self) -> int:
        return 0 if self.transport is None else int(self.transport.get_write_buffer_size())

    def _note_progress(self, now: float) -> None:
        unsent = self.unsent_bytes
        sent = self._written_bytes - unsent
        if sent > self._sent_bytes or not unsent:
            self._sent_bytes, self.progressed = sent, now

    def close_if_idle(self, seconds: float = 0.0) -> None:
        """Close the connection if it has waited for a request for so many seconds."""
        is_idle = not (self.answering or self.request or self.ahead or self._is_behind)
        if is_idle and self.transport is not None and time.perf_counter() - self.since >= seconds:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def _head_too_large(self) -> None:
        self._refuse(431, f"the head of a request may have at most {self.limits.head_bytes} bytes.")

    def _too_large(self) -> None:
        self._refuse(413, f"a request may have at most {self.limits.body_bytes} bytes.")

    def _too_many_large(self) -> None:
        self._refuse(429, "too many large requests at once.", b"retry-after: 1\r\n")

    def _refuse(self, status: int, why: str, more: bytes = b"") -> None:
        """Answer with an error, stop reading, and close."""
        if self._refused or self.transport is None:
            return
        self._refused = True
        last, self.request = self.request or Request(self), None
        self._body, self._large = [], None
        self.since = time.perf_counter()
        if self.answering or self.ahead:  # their answers would have to come first
            self.transport.abort()
            return
        last.keep_alive = False
        body = msgspec.json.encode({"error": why})
        self.write(last, status, [body], JSON, more)


def _aligned(length: int, headers: dict[bytes, bytes]) -> memoryview:
    """Memory in which the first tensor, after the JSON, is aligned for XLA."""
    json_bytes = headers.get(b"inference-header-content-length", b"0")
    first = int(json_bytes) if json_bytes.isdigit() and len(json_bytes) < 12 else 0
    return aligned_bytes(length, first).data


def keep_freed_memory() -> None:
    """Have the C library keep freed memory for the next large request.

    By default glibc returns blocks above 128 KiB to the system, and a request of a megabyte spends
    more time on page faults than on copying.
    """
    mmap_threshold, trim_threshold = -3, -1  # malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 32 * 2**20)
        mallopt(trim_threshold, 256 * 2**20)


def give_freed_memory_back() -> None:
    """Return what `keep_freed_memory` has kept to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
