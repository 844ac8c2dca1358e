"""When the host waited for a result: the only part of execution that it can see.

JAX returns before a result is there; reading it, or `block_until_ready`, waits. Who reads is asked
of the first of all, and of the first after each compile: which of them was the first result of the
program is decided by whoever reads the log.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from time import monotonic_ns

from firstlight.trace.record import calls
from firstlight.trace.record.log_format import WORTH_ASKING_NS
from firstlight.trace.record.program_errors import leave_out_caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from firstlight.trace.record.recorder import Recorder

#: Longer ones are kept one by one, so many at most between two events.
_LONG_NS = 5_000_000
_MOST_LONG = 200
#: Sums are written down so often, so that a kill loses little.
_INTERVAL_NS = 1_000_000_000
#: After a compile so many reads are asked whose they are, until one is the program's own.
_MAX_ASKED = 200


class Waits:
    """Sums of waits by the line that waited.

    busy: whether this thread is now in a stage of a compile, which may read arrays as well.
    perhaps_busy: while both are empty, no thread is.
    """

    def __init__(
        self,
        recorder: Recorder,
        busy: Callable[[], bool],
        perhaps_busy: tuple[dict[int, Any], set[int]],
    ) -> None:
        self._perhaps_busy = perhaps_busy
        self._recorder = recorder
        self._busy = busy
        self._jax = calls.jax_folders()
        self._first = True  # nobody has read anything yet
        self._to_ask = _MAX_ASKED
        pattern = recorder.first_result_pattern
        self._line = calls.named_line(pattern) if pattern else None  # that is to be the first one
        self._by_site: dict[tuple[Any, ...], list[int]] = {}
        self._long: list[tuple[int, int, tuple[Any, ...]]] = []
        self._short_ns = self._short = 0
        self._written_ns = monotonic_ns()
        self._waiting: set[int] = set()  # threads: one wait may be made of others
        self.active = True
        self.before_write: Callable[[], None] | None = None  # whether all is still heard
        self.after_own_read: Callable[[], None] | None = None  # what is put out next may hold it
        self._counted = 0  # results read, without the short ones since the last event
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def watch(self) -> None:
        """Put a clock around everything that waits."""
        import jax
        from jax._src import api, array

        array_type = array.ArrayImpl
        value = array_type.__dict__.get("_value")
        ready = array_type.__dict__.get("block_until_ready")
        if not isinstance(value, property) or value.fget is None or ready is None:
            self._recorder.problem(
                "waits: this JAX reads results in an unknown way, the first result is not known"
            )
            return
        self._replace(array_type, "_value", value, property(self._timed_array(value.fget)))
        self._replace(array_type, "block_until_ready", ready, self._timed_array(ready))
        # Many arrays at once; where this has another name, the whole function is one wait.
        client, name = getattr(api, "xc", None), "batched_block_until_ready"
        several = getattr(client, name, None)
        if several is not None:
            self._replace(client, name, several, self._timed_array(several))
            functions = ["device_get"]
        else:
            functions = ["block_until_ready", "device_get"]
        item = getattr(array_type, "item", None)
        if item is not None:
            self._replace(array_type, "item", item, self._timed(item))
        for name in functions:  # device_get reads arrays one after the other: it is one wait
            original = getattr(api, name)
            timed = self._timed(original, array_type)
            for module in (api, jax):
                self._replace(module, name, original, timed)

    @property
    def count(self) -> int:
        """Results read so far."""
        return self._counted + self._short

    def _replace(self, owner: Any, name: str, original: Any, ours: Any) -> None:
        setattr(owner, name, ours)
        self._undo.append((owner, name, original, ours))

    def unwatch(self) -> None:
        """Put back what was replaced, unless somebody else has replaced it since."""
        for owner, name, original, ours in self._undo:
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
        self._undo = []

    def forget(self) -> None:
        """In a new process: what was waited for is of its parent."""
        self._waiting.clear()
        self._by_site, self._long = {}, []
        self._short = self._short_ns = self._counted = 0
        self._written_ns = monotonic_ns()
        self.expect_first()

    def expect_first(self) -> None:
        """The next result is a first one again: somebody new is listening."""
        self._first = True
        self.expect()

    def expect(self) -> None:
        """Ask whose the next reads are, until one is the program's own: something was compiled."""
        self._to_ask = _MAX_ASKED

    def _timed_array(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A clock around one array, in which no other wait is.

        A program may come by here at every step: what is short is counted at once, by as little
        as can be.
        """
        waited = self._recorder.safely(self._waited)
        waiting, (staged, describing) = self._waiting, self._perhaps_busy

        def wait(of: Any) -> Any:
            if waiting and get_ident() in waiting:
                try:
                    return original(of)
                except BaseException as error:
                    leave_out_caller(error)
                    raise
            begin = monotonic_ns()
            try:
                return original(of)
            except BaseException as error:
                leave_out_caller(error)
                raise
            finally:
                took = monotonic_ns() - begin
                if took >= WORTH_ASKING_NS or staged or describing or self._to_ask:
                    waited(begin, begin + took)
                else:
                    self._short += 1
                    self._short_ns += took

        return _named_like(wait, original)

    def _timed(
        self, original: Callable[..., Any], has_own: type | None = None
    ) -> Callable[..., Any]:
        """A clock around something in which there may be other clocks, which are then silent.

        has_own: of this type one alone is left to the clock within, which is the cheaper way.
        """
        waited = self._recorder.safely(self._waited)
        waiting, (staged, describing) = self._waiting, self._perhaps_busy

        def wait(x: Any, *more: Any, **named: Any) -> Any:
            if type(x) is has_own and not (more or named):
                try:
                    return original(x)
                except BaseException as error:
                    leave_out_caller(error)
                    raise
            thread = get_ident()
            within = thread in waiting
            waiting.add(thread)
            begin = monotonic_ns()
            try:
                return original(x, *more, **named)
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

        return _named_like(wait, original)

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
        near, user = self._site()
        key = (get_ident(), *(near or (None, None, None)), *(user or (None, None, None)))
        total = self._by_site.setdefault(key, [0, 0, begin, end])
        total[0] += 1
        total[1] += end - begin
        total[3] = end
        if end - begin >= _LONG_NS and len(self._long) < _MOST_LONG:
            self._long.append((begin, end, key))
        if end - self._written_ns > _INTERVAL_NS:
            self.write()

    def _ask(self, end: int) -> None:
        """Write down who read, if it is the first of all, or the program's own first one."""
        frames = calls.stack(sys._getframe(2))
        if self._line is None:
            self._to_ask -= 1
        elif calls.is_at_line(frames, self._line):
            self._recorder.mark("line", calls.sites(frames, self._jax)[1])
            self._line = None
        if calls.is_read_by_operation(frames, self._jax) or calls.is_traced(frames, self._jax):
            return
        _, user = calls.sites(frames, self._jax)
        by = calls.reader(frames, self._jax)
        if self._first:
            self._first = False
            self._recorder.event("first_result", ns=end, site=user, by=by or "")
            self._written_ns = end  # sums, and what comes with them, can wait: the program goes on
        if by is None and self._line is None:
            self._to_ask = 0
            self._recorder.event("read", ns=end, site=user)
            if self.after_own_read is not None:
                self.after_own_read()

    def _site(self) -> tuple[Any, Any]:
        return calls.sites(calls.stack(sys._getframe(2)), self._jax)

    def write(self) -> None:
        """Write the sums since the last time."""
        if self.before_write is not None:
            self.before_write()
        self._written_ns = monotonic_ns()
        # A copy, made at once: another thread may still be at its sum.
        by_site, long_ones = list(self._by_site.items()), self._long
        short = self._short, self._short_ns
        self._counted += self._short
        self._by_site, self._long, self._short, self._short_ns = {}, [], 0, 0
        numbers = {key: number for number, key in enumerate(key for key, _ in by_site)}
        sums = [
            {
                "thread": thread,
                "site": key[:3],
                "user_site": key[3:],
                "n": n,
                "ns": ns,
                "span": [a, b],
            }
            for (thread, *key), (n, ns, a, b) in by_site
        ]
        self._recorder.event(
            "waits",
            sites=sums,
            long=[[begin, end, numbers[key]] for begin, end, key in long_ones if key in numbers],
            short=short[0],
            short_ns=short[1],
        )


def _named_like(wait: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    # Not functools.wraps: some of these are no functions of Python, and have half of the names.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        if isinstance(getattr(original, name, None), str):
            setattr(wait, name, getattr(original, name))
    wait.__wrapped__ = original  # type: ignore[attr-defined]
    return wait
