"""Runs of Python's garbage collector, and their time."""

from __future__ import annotations

import gc
from time import perf_counter

from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values


class GarbageCollection:
    """Counts until `close()`."""

    def __init__(self, values: Values) -> None:
        generations = [str(number) for number in range(3)]
        self._runs = [values.counter(metrics.GC_COLLECTIONS, g) for g in generations]
        self._seconds = [values.counter(metrics.GC_SECONDS, g) for g in generations]
        self._begin = 0.0
        gc.callbacks.append(self._happened)

    def close(self) -> None:
        if self._happened in gc.callbacks:
            gc.callbacks.remove(self._happened)

    def _happened(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begin = perf_counter()
        elif self._begin:
            self._runs[info["generation"]].add()
            self._seconds[info["generation"]].add(perf_counter() - self._begin)
