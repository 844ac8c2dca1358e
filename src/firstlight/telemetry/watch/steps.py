"""How long steps take, though JAX returns before a result is there.

A step begins with the first call of a jitted function after a result was read, and ends when the
host has waited for something and the results of the last call are there. If several calls were
made in between (a loop that looks at its loss every hundredth time), each is counted with the mean:
that is what a step takes as the host sees it. Results that nobody holds, and those that nobody
waits for, are counted and not timed. Nothing is waited for on behalf of the watch.
"""

from __future__ import annotations

import threading
from time import monotonic, time
from typing import Any
from weakref import ref

from firstlight.telemetry import metrics
from firstlight.telemetry.process_values import started
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.functions import Function, Functions

#: Results of one call that are looked at, and how deep in its structure.
_MAX_RESULTS = 4
_MAX_DEPTH = 4


class Here(threading.local):
    """What a thread is doing."""

    calling = False  # within a jitted function
    steps = 0  # blocks of `step()` that are open
    of: Function | None = None  # of the steps that have begun
    begin = 0.0
    count = 0  # calls or blocks since then
    compiled = False  # something, since then
    results: tuple[ref[Any], ...] = ()  # of the last call


class Steps:
    """The steps of a process."""

    def __init__(self, values: Values, limit: int) -> None:
        self.here = Here()
        self.functions = Functions(values, limit)
        self.first_result: float | None = None  # seconds from the start of the process
        self.first_warm: float | None = None
        values.gauge(metrics.COLD_START_SHARE, self._cold_start_share)
        self._values = values

    def begun(self, function: Function, begin: float) -> None:
        """One more call, or block, of a function."""
        here = self.here
        if here.of is None:
            here.of, here.begin, here.count = function, begin, 1
        elif here.of is function:
            here.count += 1

    def waited(self, array: object) -> None:
        """The host has waited for this, or for several (None): are the results of a step there?"""
        here = self.here
        if here.of is None or here.calling or here.steps:
            return
        held = _held(here.results)
        if not held:
            self.forget()
        elif any(result is array for result in held) or held[-1].is_ready():
            self._ended()

    def block_ended(self) -> None:
        """The outermost `step()` is over; its results may have been waited for within it."""
        if all(result.is_ready() for result in _held(self.here.results)):
            self._ended()

    def _ended(self) -> None:
        here = self.here
        assert here.of is not None
        phase = "cold" if here.compiled else "warm"
        mean = (monotonic() - here.begin) / here.count
        here.of.durations[phase].observe(mean, here.count)
        if self.first_warm is None:
            self._note_first(phase)
        self.forget()

    def forget(self) -> None:
        here = self.here
        here.of, here.compiled, here.results = None, False, ()

    def _note_first(self, phase: str) -> None:
        age = time() - started()
        if self.first_result is None:
            self.first_result = age
            self._values.gauge(metrics.FIRST_RESULT, lambda: age)
        if phase == "warm":
            self.first_warm = age

    def _cold_start_share(self) -> float:
        return 1.0 if self.first_warm is None else min(1.0, self.first_warm / (time() - started()))


def _held(results: tuple[ref[Any], ...]) -> list[Any]:
    """Those that the program still has, and that it has not given to a call that uses them up."""
    held = (result() for result in results)
    return [array for array in held if array is not None and not array.is_deleted()]


def results_of(value: Any, array_type: type, depth: int = 0) -> tuple[ref[Any], ...]:
    """A few of the arrays in a result: they are all there as soon as one is."""
    if type(value) is array_type:
        return (ref(value),)
    if isinstance(value, (tuple, list)):
        parts = value[-_MAX_RESULTS:]
    elif isinstance(value, dict):
        parts = list(value.values())[-_MAX_RESULTS:]
    else:
        parts = list(getattr(value, "__dict__", {}).values())[-_MAX_RESULTS:]
    found: tuple[ref[Any], ...] = ()
    for part in parts if depth < _MAX_DEPTH else ():
        if len(found) < _MAX_RESULTS:
            found += results_of(part, array_type, depth + 1)
    return found[:_MAX_RESULTS]
