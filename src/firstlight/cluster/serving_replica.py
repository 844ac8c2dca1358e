"""A replica in Ray Serve: all of `firstlight serve`, on its own port.

Ray starts replicas, watches them and scales their number; requests come directly from
`serving_front`. Ray's own proxy would take a hundred times as long as a small request.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstlight.serve.compiled_models import Loaded
from firstlight.serve.running import Service, Settings, prepare_process
from firstlight.serve.targets import declared

#: The actor that holds the reports of replicas.
BOARD, NAMESPACE = "firstlight-serve", "firstlight"
_REPORT_SECONDS = 1.0
#: A replica that has not reported for so long is gone.
_SILENT_SECONDS = 15.0


@dataclass(frozen=True)
class Replicated:
    """What every replica serves."""

    targets: tuple[str, ...]
    workspace: str | None
    settings: Settings
    is_local: bool = True  # all replicas are on the machine that requests come to


@dataclass(frozen=True)
class Report:
    """What a replica that accepts requests reports about itself."""

    name: str
    host: str
    port: int
    process: int
    compiled: int
    from_cache: int
    startup_seconds: float


class Board:
    """The last report of every replica."""

    def __init__(self) -> None:
        self._reports: dict[str, tuple[float, Report]] = {}

    def put(self, report: Report) -> None:
        self._reports[report.name] = time.monotonic(), report

    def drop(self, name: str) -> None:
        self._reports.pop(name, None)

    def reports(self) -> list[Report]:
        since = time.monotonic() - _SILENT_SECONDS
        self._reports = {n: pair for n, pair in self._reports.items() if pair[0] > since}
        return [report for _, report in self._reports.values()]


class Replica:
    """Ready, also in Ray's view, once every executable has run."""

    async def __init__(self, what: Replicated) -> None:  # type: ignore[misc]
        """Ray Serve awaits it."""
        import ray
        from ray import serve

        prepare_process()
        self._service = Service(what.settings, time.time())
        loop = asyncio.get_running_loop()
        loaded = await loop.run_in_executor(
            None, lambda: self._service.prepare(declared(what.targets, what.workspace))
        )
        await self._service.begin_serving(loaded)
        np.seterr(over="raise")  # in the context of the connections: see `as_array`
        host = "127.0.0.1" if what.is_local else str(ray.util.get_node_ip_address())
        self._listener = await loop.create_server(self._service.server.connection, host, 0)
        self._report = _report(serve, loaded, self._listener, self._service.startup_seconds)
        self._board = ray.get_actor(BOARD, NAMESPACE)
        self._reporting = loop.create_task(self._keep_reporting())
        self._last = time.perf_counter(), 0.0

    async def _keep_reporting(self) -> None:
        while True:
            with suppress(Exception):  # the next report follows in a second
                await self._board.put.remote(self._report)
            await asyncio.sleep(_REPORT_SECONDS)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray every few seconds, for `serving_scale`."""
        lanes = [lane for s in self._service.models.all_served() for lane in s.lanes.values()]
        waiting = sum(lane.queued_rows / lane.buckets[-1].rows for lane in lanes)
        now, busy = time.perf_counter(), sum(lane.execute_duration.total for lane in lanes)
        before, self._last = self._last, (now, busy)
        share = (busy - before[1]) / max(now - before[0], 1e-3)
        return {"waiting_batches": waiting, "busy_share": min(max(share, 0.0), 1.0)}

    async def __del__(self) -> None:
        """Ray Serve awaits it before a replica ends: requests that have arrived are answered."""
        with suppress(Exception):
            self._reporting.cancel()
            await self._board.drop.remote(self._report.name)
        await self._service.drain(self._listener)


def _report(serve: Any, loaded: list[Loaded], listener: Any, seconds: float) -> Report:
    buckets = [bucket for one in loaded for bucket in one.buckets]
    from_cache = sum(bucket.from_cache for bucket in buckets)
    host, port = listener.sockets[0].getsockname()[:2]
    name = serve.get_replica_context().replica_id.unique_id
    compiled = len(buckets) - from_cache
    return Report(name, host, port, os.getpid(), compiled, from_cache, seconds)
