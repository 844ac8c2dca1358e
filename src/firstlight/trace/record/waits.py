"""When the host waited for a result: the only part of execution that it can see.

JAX returns before a result is there; reading it, or `block_until_ready`, waits. What reads is
recorded for the first read of all and the first after each compile; the reader of the log decides
which of them was the first result of the program.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from firstlight.trace.record import calls
from firstlight.trace.record.log_format import WORTH_ASKING_NS
from firstlight.trace.record.program_errors import leave_out_caller
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.record.replacements import Replacements, named_like

#: Longer waits are kept one by one, up to this number between two events.
_LONG_NS = 5_000_000
_MAX_LONG = 200
_INTERVAL_NS = 1_000_000_000  # between two writes of the sums, so that a kill loses little
_MAX_ASKED = 200  # reads after a compile that are attributed, until one is the program's own


class Waits:
    """Sums waits by the line that waited.
    busy: whether this thread is in a stage of a compile, which may read arrays too.
    perhaps_busy: while both are empty, no thread is."""

    def __init__(
        self,
        recorder: Recorder,
        busy: Callable[[], bool],
        perhaps_busy: tuple[dict[int, Any], set[int]],
    ) -> None:
        self._recorder, self._busy, self._perhaps_busy = recorder, busy, perhaps_busy
        self._first = True  # nothing was read yet
        self._to_ask = _MAX_ASKED
        pattern = recorder.first_result_pattern
        self._line = calls.named_line(pattern) if pattern else None  # its wait is the first result
        self._by_site: dict[tuple[Any, ...], list[int]] = {}
        self._long: list[tuple[int, int, tuple[Any, ...]]] = []
        self._short_ns = self._short = 0
        self._written_ns = monotonic_ns()
        self._waiting: set[int] = set()  # threads in a wait, which may contain others
        self.active = True
        self.before_write: Callable[[], None] | None = None  # checks the listeners
        self.after_own_read: Callable[[], None] | None = None  # the next output may show the result
        self._counted = 0  # results read, without the short waits since the last event
        self._replaced = Replacements()

    def watch(self) -> None:
        """Put a clock around everything that waits."""
        import jax
        from jax._src import api, array

        array_type = array.ArrayImpl
        value = array_type.__dict__.get("_value")
        if not isinstance(value, property) or not hasattr(array_type, "block_until_ready"):
            self._recorder.problem(
                "waits: how this JAX reads results is unknown, and so is the first result"
            )
            return
        put, timed_array = self._replaced.put, self._timed_array
        put(array_type, "_value", property(timed_array(value.fget)))
        # Waits for many arrays at once; if it has another name, all of block_until_ready is timed.
        client, several = getattr(api, "xc", None), "batched_block_until_ready"
        for owner, name in ((array_type, "block_until_ready"), (client, several)):
            if hasattr(owner, name):
                put(owner, name, timed_array(getattr(owner, name)))
        if hasattr(array_type, "item"):
            put(array_type, "item", self._timed(array_type.item))
        # device_get reads arrays one by one, but is one wait.
        for name in ("device_get", "block_until_ready")[: 1 if hasattr(client, several) else 2]:
            ours = self._timed(getattr(api, name))
            for module in (api, jax):
                put(module, name, ours)

    def unwatch(self) -> None:
        self._replaced.undo()

    @property
    def count(self) -> int:
        """Results read so far."""
        return self._counted + self._short

    def forget(self) -> None:
        """Drop the waits of the parent process, after a fork."""
        self._waiting.clear()
        self._by_site, self._long = {}, []
        self._short = self._short_ns = self._counted = 0
        self._written_ns = monotonic_ns()
        self.expect_first()

    def expect_first(self) -> None:
        """Treat the next result as the first again, for a new recording."""
        self._first = True
        self.expect()

    def expect(self) -> None:
        """Attribute the next reads until one is the program's own: something was compiled."""
        self._to_ask = _MAX_ASKED

    def _timed_array(self, original: Any) -> Any:
        """Time the wait for one array.
        A program may call this in every step: short waits must cost as little as possible."""
        waited = self._recorder.safely(self._waited)
        waiting, (staged, describing) = self._waiting, self._perhaps_busy

        def wait(of: Any) -> Any:
            begin = monotonic_ns()
            try:
                return original(of)
            except BaseException as error:
                leave_out_caller(error)
                raise
            finally:
                took = monotonic_ns() - begin
                if waiting and get_ident() in waiting:
                    pass  # part of a wait that is timed as a whole
                elif took >= WORTH_ASKING_NS or staged or describing or self._to_ask:
                    waited(begin, begin + took)
                else:
                    self._short += 1
                    self._short_ns += took

        return named_like(wait, original)

    def _timed(self, original: Any) -> Any:
        """Time a function that may contain timed waits, which are then not counted."""
        waited = self._recorder.safely(self._waited)
        waiting, (staged, describing) = self._waiting, self._perhaps_busy

        def wait(*arguments: Any, **named: Any) -> Any:
            thread = get_ident()
            within = thread in waiting
            waiting.add(thread)
            begin = monotonic_ns()
            try:
                return original(*arguments, **named)
            except BaseException as error:
                leave_out_caller(error)
                raise
            finally:
                took = monotonic_ns() - begin
                if not within:
                    waiting.discard(thread)
                    if took >= WORTH_ASKING_NS or staged or describing or self._to_ask:
                        waited(begin, begin + took)
                    else:
                        self._short += 1
                        self._short_ns += took

        return named_like(wait, original)

    def _waited(self, begin: int, end: int) -> None:
        if not self.active or self._busy():
            return
        if self._to_ask:
            self._ask(end)
        if end - begin < WORTH_ASKING_NS:
            self._short += 1
            self._short_ns += end - begin
            return
        self._counted += 1
        near, user = calls.sites(calls.stack(sys._getframe(1)))
        key = (get_ident(), *(near or (None, None, None)), *(user or (None, None, None)))
        total = self._by_site.setdefault(key, [0, 0, begin, end])
        total[0] += 1
        total[1] += end - begin
        total[3] = end
        if end - begin >= _LONG_NS and len(self._long) < _MAX_LONG:
            self._long.append((begin, end, key))
        if end - self._written_ns > _INTERVAL_NS:
            self.write()

    def _ask(self, end: int) -> None:
        """Record what read, if it is the first read of all or the first of the program itself."""
        frames = calls.stack(sys._getframe(2))
        if self._line is None:
            self._to_ask -= 1
        elif calls.is_at_line(frames, self._line):
            self._recorder.mark("line", calls.sites(frames)[1])
            self._line = None
        if calls.is_read_by_operation(frames) or calls.is_traced(frames):
            return
        (_, user), by = calls.sites(frames), calls.reader(frames)
        if self._first:
            self._first = False
            self._recorder.event("first_result", ns=end, site=user, by=by or "")
            self._written_ns = end  # postpones the sums: the program goes on first
        if by is None and self._line is None:
            self._to_ask = 0
            self._recorder.event("read", ns=end, site=user)
            if self.after_own_read is not None:
                self.after_own_read()

    def write(self) -> None:
        """Write the sums since the last time."""
        if self.before_write is not None:
            self.before_write()
        self._written_ns = monotonic_ns()
        # A copy: another thread may still be adding.
        by_site, long_ones = list(self._by_site.items()), self._long
        short, short_ns = self._short, self._short_ns
        self._counted += short
        self._by_site, self._long, self._short, self._short_ns = {}, [], 0, 0
        numbers = {key: number for number, (key, _) in enumerate(by_site)}
        about = ("thread", "site", "user_site", "n", "ns", "span")
        sums = [
            dict(zip(about, (thread, key[:3], key[3:], n, ns, [a, b]), strict=True))
            for (thread, *key), (n, ns, a, b) in by_site
        ]
        long = [[begin, end, numbers[key]] for begin, end, key in long_ones if key in numbers]
        self._recorder.event("waits", sites=sums, long=long, short=short, short_ns=short_ns)
