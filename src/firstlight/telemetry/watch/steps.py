"""How long steps take, though JAX returns before a result is there.

A step begins with the first call of a jitted function after a result was read, and ends when the
host has waited for something and the results of the last call are there. If several calls were
made in between (a loop that looks at its loss every hundredth time), each is counted with the mean:
that is what a step takes as the host sees it. Calls whose results nobody waits for, or of which
nobody can tell any more, are counted and not timed. Nothing is waited for on behalf of the watch.
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

#: Larger results are not held for the sake of the watch.
_MAX_HELD_BYTES = 2**20
#: Results of one call that are looked at, and how deep in its structure.
_MAX_RESULTS = 4
_MAX_DEPTH = 4
#: More are looked through for those that are no more.
_MAX_THREADS = 256
#: Steps that are timed and not counted yet.
MAX_ENDED = 500


class Here:
    """What a thread is doing."""

    __slots__ = (
        *("begin", "calling", "compiled", "count", "is_ours", "of", "passes_on", "result"),
        *("steps", "took_gradient"),
    )

    def __init__(self) -> None:
        self.calling = False  # within a jitted function
        self.is_ours = False  # what it calls is called by the watch
        self.steps = 0  # blocks of `step()` that are open
        self.of: Function | None = None  # of the steps that have begun
        self.begin = 0.0
        self.count = 0  # calls or blocks since then
        self.compiled = False  # something, since then
        self.result: Any = None  # of the last call: an array, or a reference to it
        self.took_gradient = False  # in a program that was made
        self.passes_on = False  # a rule of the program's own has returned what it was given


class Steps:
    """The steps of a process. A program comes by here at every call: there is little to do."""

    def __init__(self, values: Values, limit: int) -> None:
        #: By thread. What `threading.local` has is found in twice the time.
        self.threads: dict[int, Here] = {}
        self.functions = Functions(values, limit)
        #: Function, begin, calls, whether something compiled, end.
        self.ended: deque[tuple[Any, float, int, bool, float]] = deque()
        self.first_result: float | None = None  # seconds from the start of the process
        self.first_warm: float | None = None
        values.gauge(metrics.COLD_START_SHARE, self._cold_start_share)
        self._values = values

    def here(self) -> Here:
        """What this thread is doing."""
        known = self.threads.get(get_ident())
        if known is None:
            if len(self.threads) >= _MAX_THREADS:
                alive = {thread.ident for thread in threading.enumerate()}
                for gone in set(self.threads) - alive:
                    self.threads.pop(gone, None)
            known = self.threads[get_ident()] = Here()
        return known

    @contextmanager
    def ours(self) -> Iterator[None]:
        """What happens in this thread meanwhile is the watch's doing, and not counted."""
        here = self.here()
        before = here.calling, here.is_ours
        here.calling = here.is_ours = True
        try:
            yield
        finally:
            here.calling, here.is_ours = before

    def begun(self, here: Here, function: Function, begin: float) -> None:
        """One more call, or block, of a function."""
        if here.of is None:
            here.of, here.begin, here.count = function, begin, 1
        elif here.of is function:
            here.count += 1

    def returned(self, here: Here, function: Function, array: Any) -> None:
        """A call has returned this, which is there now or later.

        A small one is held until the next call or wait, since the program may read only what it
        computes from it; a large one is not kept from being freed.
        """
        if here.compiled or function.holds_result is None:
            function.holds_result = array.nbytes <= _MAX_HELD_BYTES
        here.result = array if function.holds_result else ref(array)

    def waited(self, here: Here, array: object) -> None:
        """The host has waited for this: are the results of a step there?"""
        if here.of is None or here.calling or here.steps:
            return
        result = here.result() if type(here.result) is ref else here.result
        if result is None or result.is_deleted():
            self.forget(here)
        elif result is array or result.is_ready():
            self._ended(here)

    def block_ended(self, here: Here) -> None:
        """The outermost `step()` is over; its results may have been waited for within it."""
        result = here.result() if type(here.result) is ref else here.result
        if result is None or result.is_deleted() or result.is_ready():
            self._ended(here)

    def forget(self, here: Here) -> None:
        here.of, here.compiled, here.result = None, False, None

    def _ended(self, here: Here) -> None:
        self.ended.append((here.of, here.begin, here.count, here.compiled, monotonic()))
        here.of, here.compiled, here.result = None, False, None
        if len(self.ended) >= MAX_ENDED:
            self.count_ended()

    def count_ended(self) -> None:
        """Put the steps that have ended since the last time into their histograms."""
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
    """A few of the arrays in a result, the last ones: all are there as soon as one is."""
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
