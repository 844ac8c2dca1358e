"""The front of a server on a cluster: it forwards each request to the least busy replica.

If a replica ends before it answers, another one gets the request: results depend only on the
request.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

import httptools

from firstlight.cluster.serving_replica import Report
from firstlight.serve.app import BINARY, JSON, Exchange, Handler, fail
from firstlight.telemetry.prometheus import CONTENT_TYPE

#: Hop-by-hop headers: they concern one connection and are not forwarded.
_OF_CONNECTION = frozenset(
    (b"connection", b"content-length", b"expect", b"keep-alive", b"transfer-encoding", b"upgrade")
)
#: How many replicas a request is given to, one after another.
_TRIES = 4
#: How long an unreachable replica is not tried again.
_PAUSE_SECONDS = 1.0
_LOOK_SECONDS = 0.1


class Replica:
    """Connections to a replica."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.idle: list[Link] = []
        self.links: set[Link] = set()
        self.waiting = 0  # requests that it has not answered
        self.paused_until = 0.0

    def close(self) -> None:
        for link in list(self.idle):
            link.close()


class Front(Handler):
    """Takes the place of a server's app: `handle` forwards an exchange."""

    def __init__(self) -> None:
        self.replicas: dict[str, Replica] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    def update(self, reports: Iterable[Report]) -> tuple[list[Report], list[Report]]:
        """Use these replicas from now on; returns the new ones and the lost ones."""
        now = {report.name: report for report in reports}
        gone = [self.replicas.pop(name) for name in list(self.replicas) if name not in now]
        new = [report for name, report in now.items() if name not in self.replicas]
        self.replicas |= {report.name: Replica(report) for report in new}
        for replica in gone:
            replica.close()
        return new, [replica.report for replica in gone]

    def handle(self, exchange: Exchange) -> None:
        """Answer once a replica has; never raises."""
        if exchange.path == b"/v2/health/live":
            exchange.answer(200, [b""])
        elif exchange.path == b"/metrics":
            self._begin(self._metrics(exchange))
        else:
            self.forward(_Passed(exchange))

    def forward(self, passed: _Passed) -> None:
        """Give a request to a replica, preferably one that has not had it."""
        replica = self._choose(passed)
        if replica is None:
            more = b"retry-after: 1\r\n"
            fail(passed.exchange, 503, "no replica accepts requests now.", more=more)
            return
        passed.tried.append(replica.report.name)
        replica.waiting += 1
        if replica.idle:
            replica.idle.pop().send(passed)
        else:
            self._begin(self._connect(replica, passed))

    def _choose(self, passed: _Passed) -> Replica | None:
        if len(passed.tried) >= (_TRIES if passed.only is None else 1):
            return None
        if passed.only is not None:
            return self.replicas.get(passed.only)
        now = time.perf_counter()
        usable = [r for r in self.replicas.values() if r.paused_until <= now]
        fresh = [r for r in usable if r.report.name not in passed.tried]
        return min(fresh or usable, key=lambda replica: replica.waiting, default=None)

    async def _connect(self, replica: Replica, passed: _Passed) -> None:
        loop = asyncio.get_running_loop()
        address = replica.report.host, replica.report.port
        try:
            _, link = await loop.create_connection(lambda: Link(self, replica), *address)
        except OSError:
            replica.paused_until = time.perf_counter() + _PAUSE_SECONDS
            replica.waiting -= 1
            self.forward(passed)
            return
        link.send(passed)

    async def _metrics(self, exchange: Exchange) -> None:
        """Answer with the metrics of all replicas."""
        asked = {name: _Copy(exchange) for name in self.replicas}
        for name, copy in asked.items():
            self.forward(_Passed(copy, only=name))
        answers = {name: await copy.answered for name, copy in asked.items()}
        refused = next((found for found in answers.values() if found[0] == 401), None)
        if refused is not None:
            exchange.answer(refused[0], [refused[1]])
            return
        text = merged(
            {name: body.decode() for name, (code, body) in answers.items() if code == 200}
        )
        exchange.answer(200, [text.encode()], CONTENT_TYPE.encode())

    async def drop_abandoned(self) -> None:
        """Reset the links of requests whose client has left, so that replicas drop the rows."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for replica in self.replicas.values():
                for link in [link for link in replica.links if link.is_abandoned]:
                    link.reset()

    def _begin(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class _Passed:
    """A request in flight, and the replicas that have had it."""

    def __init__(self, exchange: Exchange, only: str | None = None) -> None:
        self.exchange, self.only = exchange, only
        self.tried: list[str] = []

    def parts(self) -> list[Any]:
        exchange = self.exchange
        method = b"GET" if exchange.method == b"HEAD" else exchange.method
        lines = [b"%s %s HTTP/1.1" % (method, exchange.path)]
        lines += [
            b"%s: %s" % pair for pair in exchange.headers.items() if pair[0] not in _OF_CONNECTION
        ]
        lines += [b"content-length: %d" % len(exchange.body), b"", b""]
        return [b"\r\n".join(lines), exchange.body]


class _Copy(Exchange):
    """A request that is sent to several replicas."""

    __slots__ = ("answered",)

    def __init__(self, of: Exchange) -> None:
        self.method, self.path, self.headers = of.method, of.path, of.headers
        self.body, self.arrived = of.body, of.arrived
        self.answered: asyncio.Future[tuple[int, bytes]]
        self.answered = asyncio.get_running_loop().create_future()

    def answer(
        self, status: int, parts: list[Any], content_type: bytes = JSON, more: bytes = b""
    ) -> None:
        self.answered.set_result((status, b"".join(parts)))


class Link(asyncio.Protocol):
    """A connection to a replica; it carries one request at a time."""

    def __init__(self, front: Front, replica: Replica) -> None:
        self._front, self._replica = front, replica
        self._passed: _Passed | None = None
        self._transport: Any = None

    @property
    def is_abandoned(self) -> bool:
        return self._passed is not None and self._passed.exchange.is_gone()

    def send(self, passed: _Passed) -> None:
        self._passed = passed
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._transport.writelines(passed.parts())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Reset the connection: unlike `close`, it shows the replica that the client has left."""
        at_once = struct.pack("ii", 1, 0)  # linger for no time
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self._transport.abort()

    # --- called by the event loop and the parser --------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._replica.links.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._replica.links.discard(self)
        if self in self._replica.idle:
            self._replica.idle.remove(self)
        passed, self._passed = self._passed, None
        if passed is not None:
            self._replica.waiting -= 1
            if not passed.exchange.is_gone():
                self._front.forward(passed)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        passed, self._passed = self._passed, None
        if passed is None:
            return
        self._replica.waiting -= 1
        if self._parser.should_keep_alive() and self._replica.links:
            self._replica.idle.append(self)
        content_type = self._headers.pop(b"content-type", BINARY)
        more = b"".join(
            b"%s: %s\r\n" % pair for pair in self._headers.items() if pair[0] not in _OF_CONNECTION
        )
        passed.exchange.answer(
            self._parser.get_status_code(), self._body or [b""], content_type, more
        )


def merged(texts: Mapping[str, str]) -> str:
    """Metrics of several replicas in one text; a label names the replica of each series."""
    lines: dict[str, list[str]] = {}
    for name, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                family = line.split()[2]
                known = lines.setdefault(family, [])
                if line not in known:
                    known.append(line)
            else:
                lines[family].append(_labelled(line, name))
    return "\n".join([*(line for family in lines.values() for line in family), ""])


def _labelled(line: str, replica: str) -> str:
    series, _, value = line.rpartition(" ")
    name, brace, labels = series.partition("{")
    both = f"{labels.removesuffix('}')}," if brace else ""
    return f'{name}{{{both}replica="{replica}"}} {value}'
