"""Durations of steps, although JAX returns before a result is ready.

A step begins with the first call of a jitted function after a result was read, and ends when the
host has waited for something and the results of the last call are ready. If there were several
calls in between (a loop that reads its loss every hundredth time), each is counted with their mean
duration. Calls whose results are never waited for, or are gone, are counted but not timed. The
watch itself never waits.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, time
from typing import Any
from weakref import ref

from firstlight.telemetry import metrics
from firstlight.telemetry.process_values import started
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.functions import Function, Functions

#: Larger results are not kept alive by the watch.
_MAX_HELD_BYTES = 2**20
#: Arrays of one result that are inspected, and the depth searched for them.
_MAX_RESULTS = 4
_MAX_DEPTH = 4
#: Beyond so many, the states of threads that have ended are dropped.
_MAX_THREADS = 256
#: Steps that are timed but not yet in a histogram.
MAX_ENDED = 500


class ThreadState:
    """The state of one thread."""

    __slots__ = (
        *("begin", "calling", "compiled", "count", "is_ours", "of", "passes_on", "result"),
        *("steps", "took_gradient"),
    )

    def __init__(self) -> None:
        self.calling = False  # within a jitted function
        self.is_ours = False  # within a call made by the watch
        self.steps = 0  # open blocks of `step()`
        self.of: Function | None = None  # function of the current steps
        self.begin = 0.0
        self.count = 0  # calls or blocks since `begin`
        self.compiled = False  # whether anything compiled since `begin`
        self.result: Any = None  # of the last call: an array, or a weak reference to it
        self.took_gradient = False  # while a program was traced
        self.passes_on = False  # a custom rule has returned its input


class Steps:
    """The steps of a process. This code runs at every call, so it does as little as possible."""

    def __init__(self, values: Values, limit: int) -> None:
        #: By thread identifier; `threading.local` would take twice the time.
        self.threads: dict[int, ThreadState] = {}
        self.functions = Functions(values, limit)
        #: (function, begin, calls, whether anything compiled, end)
        self.ended: deque[tuple[Any, float, int, bool, float]] = deque()
        self.first_result: float | None = None  # seconds from the start of the process
        self.first_warm: float | None = None
        values.gauge(metrics.COLD_START_SHARE, self._cold_start_share)
        self._values = values

    def here(self) -> ThreadState:
        """The state of this thread."""
        known = self.threads.get(get_ident())
        if known is None:
            if len(self.threads) >= _MAX_THREADS:
                alive = {thread.ident for thread in threading.enumerate()}
                for gone in set(self.threads) - alive:
                    self.threads.pop(gone, None)
            known = self.threads[get_ident()] = ThreadState()
        return known

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Do not count what this thread does within the block."""
        here = self.here()
        before = here.calling, here.is_ours
        here.calling = here.is_ours = True
        try:
            yield
        finally:
            here.calling, here.is_ours = before

    def begun(self, here: ThreadState, function: Function, begin: float) -> None:
        """Count one more call, or block, of a function."""
        if here.of is None:
            here.of, here.begin, here.count = function, begin, 1
        elif here.of is function:
            here.count += 1

    def returned(self, here: ThreadState, function: Function, array: Any) -> None:
        """Note the result of a call, which may not be ready yet.

        A small result is held until the next call or wait, since the program may read only values
        computed from it; a large one is referenced weakly.
        """
        if here.compiled or function.holds_result is None:
            function.holds_result = array.nbytes <= _MAX_HELD_BYTES
        here.result = array if function.holds_result else ref(array)

    def waited(self, here: ThreadState, array: object) -> None:
        """End the step if its results are ready, now that the host has waited for `array`."""
        if here.of is None or here.calling or here.steps:
            return
        result = here.result() if type(here.result) is ref else here.result
        if result is None or result.is_deleted():
            self.forget(here)
        elif result is array or result.is_ready():
            self._ended(here)

    def enter(self, name: str) -> None:
        """A block of `step(name)` begins."""
        here = self.here()
        if not here.steps and not here.calling:
            function = self.functions.of_steps(name)
            if here.of is not function:
                self.forget(here)
            self.begun(here, function, monotonic())
        here.steps += 1

    def exit(self, name: str, error: BaseException | None) -> None:
        """A block of `step(name)` ends; if its results are ready, the step ends as well."""
        here = self.here()
        if not here.steps:  # entered before the watch started
            return
        here.steps -= 1
        if here.steps or here.calling:
            return
        function = self.functions.of_steps(name)
        if error is not None:
            if isinstance(error, Exception):
                function.errors.add()
            self.forget(here)
            return
        function.ok.add()
        result = here.result() if type(here.result) is ref else here.result
        if result is None or result.is_deleted() or result.is_ready():
            self._ended(here)

    def forget(self, here: ThreadState) -> None:
        here.of, here.compiled, here.result = None, False, None

    def _ended(self, here: ThreadState) -> None:
        self.ended.append((here.of, here.begin, here.count, here.compiled, monotonic()))
        here.of, here.compiled, here.result = None, False, None
        if len(self.ended) >= MAX_ENDED:
            self.count_ended()

    def count_ended(self) -> None:
        """Move ended steps into their histograms."""
        while self.ended:
            try:
                of, begin, count, compiled, end = self.ended.popleft()
            except IndexError:  # another thread was faster
                return
            of.durations["cold" if compiled else "warm"].observe((end - begin) / count, count)
            if self.first_warm is None:
                self._note_first(compiled, time() - started() - (monotonic() - end))

    def _note_first(self, compiled: bool, age: float) -> None:
        if self.first_result is None:
            self.first_result = age
            self._values.gauge(metrics.FIRST_RESULT, lambda: age)
        if not compiled:
            self.first_warm = age

    def _cold_start_share(self) -> float:
        return 1.0 if self.first_warm is None else min(1.0, self.first_warm / (time() - started()))


def arrays_in(value: Any, array_type: type, depth: int = 0) -> list[Any]:
    """The last few arrays in a result; all arrays of a result become ready together."""
    if type(value) is array_type:
        return [value]
    if isinstance(value, (tuple, list)):
        parts = value[-_MAX_RESULTS:]
    elif isinstance(value, dict):
        parts = list(value.values())[-_MAX_RESULTS:]
    else:
        parts = list(getattr(value, "__dict__", {}).values())[-_MAX_RESULTS:]
    found: list[Any] = []
    for part in parts if depth < _MAX_DEPTH else ():
        if len(found) < _MAX_RESULTS:
            found += arrays_in(part, array_type, depth + 1)
    return found[:_MAX_RESULTS]
