"""Counts what JAX compiles in this process, from JAX's own events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from firstlight.import_watch import when_imported
from firstlight.telemetry import metrics
from firstlight.telemetry.events import CACHE, STAGES
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.compiles import listen


class _Here(threading.local):
    """What is known of a thread."""

    preparing = runs_batches = False
    hits = compiles = 0


class CompileWatch:
    """Counts compiles, and those that requests wait for.

    Compiles within `preparing()` are intended. So are those of other threads meanwhile, which run
    callbacks of what is prepared, unless they run batches.
    """

    def __init__(self, values: Values) -> None:
        self.request_path = values.counter(metrics.REQUEST_PATH_COMPILES)
        self._durations = {
            stage: values.histogram(metrics.COMPILE_DURATION, stage) for stage in STAGES.values()
        }
        self._cache = {
            "hit": values.counter(metrics.COMPILE_CACHE_REQUESTS, "hit"),
            "written": values.counter(metrics.COMPILE_CACHE_REQUESTS, "miss"),
        }
        self._here = _Here()
        self._preparing, self._lock = 0, threading.Lock()
        self._stop: Callable[[], None] | None = None
        # A server of frozen functions may never import JAX.
        when_imported("jax", self._listen)

    def _listen(self) -> None:
        self._stop = listen(self._ended, self._happened)

    @property
    def cache_hits(self) -> int:
        """The number of executables that this thread has loaded from the compilation cache."""
        return self._here.hits

    def compiles_in_batches(self) -> int:
        """The number of compiles of this thread so far; called by threads that run batches."""
        here = self._here
        here.runs_batches = True
        return here.compiles

    def loaded_by_name(self, executables: int) -> None:
        """Count executables that were found in the cache without asking JAX."""
        self._cache["hit"].add(executables)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Compiles within the block are intended."""
        before = self._here.preparing
        self._here.preparing = True
        self._count_preparing(1)
        try:
            yield
        finally:
            self._here.preparing = before
            self._count_preparing(-1)

    def _count_preparing(self, change: int) -> None:
        with self._lock:
            self._preparing += change

    def close(self) -> None:
        if self._stop is not None:
            self._stop()

    def _ended(self, event: str, seconds: float, **_: object) -> None:
        stage = STAGES.get(event)
        if stage is None:
            return
        self._durations[stage].observe(seconds)
        if stage != "compile" or self._here.preparing:
            return
        self._here.compiles += 1
        if self._here.runs_batches or not self._preparing:
            self.request_path.add()

    def _happened(self, event: str, **_: object) -> None:
        result = CACHE.get(event, "")
        if result in self._cache:
            self._cache[result].add()
        if result == "hit":
            self._here.hits = self.cache_hits + 1
