"""Counts compiles from JAX's own events: by stage, by function, and by result of the cache."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from firstlight.telemetry import metrics
from firstlight.telemetry.events import CACHE, SAVED, STAGES, bare_name
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.guard import guarded
from firstlight.telemetry.watch.steps import Steps


def listen(on_duration: Callable[..., None], on_event: Callable[..., None]) -> Callable[[], None]:
    """Listen to JAX's durations and events; returns the function that stops it."""
    from jax import monitoring
    from jax._src import monitoring as internal

    monitoring.register_event_duration_secs_listener(on_duration)
    monitoring.register_event_listener(on_event)

    def stop() -> None:
        for kind, listener in (("event_duration", on_duration), ("event", on_event)):
            if (
                listener in getattr(internal, f"get_{kind}_listeners", list)()
            ):  # not removed by others
                getattr(internal, f"unregister_{kind}_listener")(listener)

    return stop


class _Cache(threading.local):
    asked = False
    hit = False
    saved_seconds = 0.0


class CompileEvents:
    """Listens to JAX's events until `close()`."""

    def __init__(self, values: Values, steps: Steps, last: deque[str]) -> None:
        self._steps = steps
        self._stages = {s: values.histogram(metrics.COMPILE_DURATION, s) for s in STAGES.values()}
        self._results = {
            result: values.counter(metrics.COMPILE_CACHE_REQUESTS, result)
            for result in ("hit", "miss")
        }
        self._cache = _Cache()
        self._last = last  # names of compiled functions
        # JAX does not catch exceptions of listeners: they would reach the program.
        self.close = listen(guarded(self._ended), guarded(self._happened))

    def _ended(self, event: str, seconds: float, **about: Any) -> None:
        stage = STAGES.get(event)
        if self._steps.here().is_ours:
            return
        if event == SAVED:
            self._cache.saved_seconds = max(0.0, seconds)
        if stage is None:
            return
        self._steps.here().compiled = True
        self._stages[stage].observe(seconds)
        name = bare_name(str(about.get("fun_name")))[:100]
        compiles = self._steps.functions.of_compiles(name)
        compiles.seconds.add(seconds)
        if stage == "compile":
            compiles.saved_seconds += self._cache.saved_seconds
            self._cache.saved_seconds = 0.0
            compiles.add("cache" if self._cache_result() == "hit" else "compiler")
            self._last.append(name)

    def _happened(self, event: str, **_: Any) -> None:
        what = None if self._steps.here().is_ours else CACHE.get(event)
        if what == "requested":
            # Also reported without a cache, where it is not a lookup.
            self._cache.asked = _has_cache()
        elif what == "hit":
            self._cache.hit = True

    def _cache_result(self) -> str | None:
        """The cache's result for the compile that ends now. JAX has no event for a miss."""
        cache = self._cache
        result = ("hit" if cache.hit else "miss") if cache.asked or cache.hit else None
        cache.asked = cache.hit = False
        if result is not None:
            self._results[result].add()
        return result


def _has_cache() -> bool:
    config = getattr(sys.modules.get("jax"), "config", None)
    return bool(getattr(config, "jax_compilation_cache_dir", None))
