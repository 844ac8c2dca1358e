"""What runs in a replica of Ray Serve: the engine and the app of `firstlight serve`.

Ray's proxy carries requests here and answers back; batching, limits, deadlines and the token are
ours. Replicas tell a board how they are, so that one address has the metrics of all of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstlight.serve.app import Exchange, fail
from firstlight.serve.loading import Loaded
from firstlight.serve.rehearsal import rehearse
from firstlight.serve.running import Service, Settings, prepare_process
from firstlight.serve.targets import declared
from firstlight.telemetry.prometheus import CONTENT_TYPE

#: The actor with what replicas say of themselves.
BOARD, NAMESPACE = "firstlight-serve", "firstlight"
_TELL_SECONDS = 2.0
#: What was not heard of for so long is gone.
_SILENT_SECONDS = 15.0


@dataclass(frozen=True)
class Replicated:
    """What every replica serves."""

    targets: tuple[str, ...]
    workspace: str | None
    settings: Settings


@dataclass(frozen=True)
class Report:
    """A replica, as it was when it told so."""

    name: str
    host: str
    process: int
    compiled: int
    from_cache: int
    startup_seconds: float
    metrics: str


class Board:
    """The last report of every replica."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, Report]] = {}

    def put(self, report: Report) -> None:
        self._reports[report.name] = time.monotonic(), report

    def reports(self) -> list[Report]:
        since = time.monotonic() - _SILENT_SECONDS
        self._reports = {n: pair for n, pair in self._reports.items() if pair[0] > since}
        return [report for _, report in self._reports.values()]


class Replica:
    """Ready, for Ray too, when every executable has run."""

    async def __init__(self, what: Replicated) -> None:  # type: ignore[misc]
        """Ray Serve awaits it."""
        import ray
        from ray import serve

        prepare_process()
        self._service = Service(what.settings, time.time())
        loop = asyncio.get_running_loop()
        loaded = await loop.run_in_executor(None, self._prepared, what)
        await rehearse(loaded)
        self._service.begin_serving(loaded)
        self._loaded = loaded
        self._name = serve.get_replica_context().replica_id.unique_id
        self._board = ray.get_actor(BOARD, NAMESPACE)
        self._telling = loop.create_task(self._tell())

    def _prepared(self, what: Replicated) -> list[Loaded]:
        return self._service.prepare(declared(what.targets, what.workspace))

    async def __call__(self, request: Any) -> Any:
        """request: as Ray Serve hands it over, a `starlette.requests.Request`."""
        from starlette.responses import Response

        exchange = _Forwarded(request, await request.body())
        app, limit = self._service.app, self._service.settings.limits.body_bytes
        if len(exchange.body) > limit:
            fail(exchange, 413, f"a request may have at most {limit} bytes.")
        elif exchange.path == b"/metrics" and app.is_allowed(exchange):
            text = merged({report.name: report.metrics for report in await self._reports()})
            exchange.answer(200, [text.encode()], CONTENT_TYPE.encode())
        else:
            with np.errstate(over="raise"):  # see `as_array`
                app.handle(exchange)
        status, body, headers = await exchange.answered
        return Response(body, status, headers)

    async def _tell(self) -> None:
        while True:
            with suppress(Exception):  # whatever Ray has to say: it is told again, or nobody asks
                await self._board.put.remote(self._report())
            await asyncio.sleep(_TELL_SECONDS)

    async def _reports(self) -> list[Report]:
        """Of all replicas, this one's as it is now."""
        own = self._report()
        try:
            told: list[Report] = await self._board.reports.remote()
        except Exception:  # the board is gone
            told = []
        return [own, *(report for report in told if report.name != own.name)]

    def _report(self) -> Report:
        buckets = [bucket for one in self._loaded for bucket in one.buckets]
        from_cache = sum(bucket.from_cache for bucket in buckets)
        return Report(
            self._name,
            socket.gethostname(),
            os.getpid(),
            len(buckets) - from_cache,
            from_cache,
            self._service.startup_seconds,
            self._service.metrics_text().decode(),
        )


class _Forwarded(Exchange):
    """A request that Ray's proxy has read."""

    __slots__ = ("answered",)

    def __init__(self, request: Any, body: bytes) -> None:
        self.arrived = time.perf_counter()
        self.method, self.path = request.method.encode(), request.url.path.encode()
        self.headers = dict(request.headers.raw)
        self.body = body
        #: Status, body, headers; cancelled with the task that waits, when the client has left.
        self.answered: asyncio.Future[tuple[int, bytes, dict[str, str]]]
        self.answered = asyncio.get_running_loop().create_future()

    def answer(
        self,
        status: int,
        parts: list[Any],
        content_type: bytes = b"application/json",
        more: bytes = b"",
    ) -> None:
        headers = {"content-type": content_type.decode()}
        for line in more.decode().splitlines():
            name, _, value = line.partition(":")
            headers[name] = value.strip()
        if not self.answered.done():
            self.answered.set_result((status, b"".join(parts), headers))

    def is_gone(self) -> bool:
        return self.answered.cancelled()


def merged(texts: Mapping[str, str]) -> str:
    """Metrics of several replicas in one text, each with a label that names its replica."""
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
