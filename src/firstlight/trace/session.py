"""`with firstlight.trace.recording() as t:` traces a part of a program, in memory.

All recordings of a process share one set of hooks, installed while there are any. A recording
covers all threads, and the recordings within it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

from firstlight.trace.read.model import Finding, Function, Trace
from firstlight.trace.record.import_clock import ImportClock
from firstlight.trace.record.jax_hooks import JaxHooks, attach
from firstlight.trace.record.marks import LISTENERS
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.record.whole_process import is_loaded


class Recording:
    """A recording; complete after the block, partial inside it."""

    def __init__(self) -> None:
        self._events: list[dict[str, object]] = []
        self._recorder = Recorder(self._events.append)
        self._read: tuple[int, Trace] | None = None
        self._ended = False

    @property
    def trace(self) -> Trace:
        """The trace so far, with findings."""
        count = len(self._events)
        if self._read is None or self._read[0] != count:
            self._read = (count, _read(self._events[:count], self._recorder, self._ended))
        return self._read[1]

    @property
    def compile_count(self) -> int:
        """Number of programs compiled."""
        return self.trace.compile_count

    @property
    def recompiles(self) -> int:
        """Number of compiles of functions that this recording had seen compiled before."""
        return self.trace.recompiles

    @property
    def functions(self) -> tuple[Function, ...]:
        """Functions that compiled, the most expensive first."""
        return self.trace.functions

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What cost time and what to do, worst first."""
        return self.trace.findings

    def __repr__(self) -> str:
        from firstlight.trace.show.cell import as_text

        return as_text(self.trace)

    def _repr_html_(self) -> str:
        from firstlight.trace.show.cell import as_html

        return as_html(self.trace)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record what JAX traces, lowers and compiles in all threads of this process during the block.
    It writes nothing to disk and raises nothing into the block."""
    one = Recording()
    _SHARED.join(one)
    try:
        yield one
    finally:
        _SHARED.leave(one)


def _read(events: list[dict[str, object]], recorder: Recorder, ended: bool) -> Trace:
    import json
    from dataclasses import replace

    from firstlight.trace.findings import find
    from firstlight.trace.read.assembly import assemble
    from firstlight.trace.read.log_events import ProcessLog

    # As in a log file: tuples become lists, other types become text.
    head, *rest = json.loads(json.dumps(events, default=str))
    if not ended:
        rest.append({"event": "end", "ns": monotonic_ns(), "problems": sorted(recorder.problems)})
    trace = assemble([ProcessLog(head, rest)])
    return replace(trace, findings=find(trace))


class _Shared:
    """The hooks of this process, and the recordings that get their events."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listening: tuple[Recording, ...] = ()
        self._recorder = Recorder(self._write)
        self._hooks: JaxHooks | None = None
        self._clock: ImportClock | None = None
        self._mark: Callable[..., None] | None = None

    def join(self, one: Recording) -> None:
        with self._lock:
            now = monotonic_ns()
            self._settle()  # the waits so far do not belong to the new one
            one._recorder.begin(now, whole=False)
            self._listening = (*self._listening, one)
            if len(self._listening) == 1:
                self._start()
            elif self._hooks is not None:
                self._recorder.marked = False
                one._recorder.event("jax", version=sys.modules["jax"].__version__, ns=now)
                self._hooks.waits.expect_first()

    def leave(self, one: Recording) -> None:
        with self._lock:
            self._settle()
            self._listening = tuple(other for other in self._listening if other is not one)
            one._recorder.problems |= self._recorder.problems
            one._ended = True
            one._recorder.end()
            if not self._listening:
                self._stop()

    def forked(self) -> None:
        """Start over in a forked process, where the thread that held the lock may not exist."""
        self._lock = threading.RLock()
        if self._hooks is not None:
            self._recorder.safely(self._hooks.forked)()

    def _write(self, event: dict[str, object]) -> None:
        for one in self._listening:
            one._recorder._write(event)

    def _settle(self) -> None:
        """Write the sums of waits to the current recordings."""
        if self._hooks is not None:
            self._recorder.safely(self._hooks.waits.write)()

    def _start(self) -> None:
        self._recorder = recorder = Recorder(self._write)
        self._mark = recorder.safely(recorder.mark_here)
        LISTENERS.append(self._mark)
        attach_jax = recorder.safely(self._attach)
        attach_jax("jax")
        # Attach even within an import: what follows JAX in it may compile.
        self._clock = ImportClock(recorder.safely(recorder.imported), attach_jax, ("jax",))
        self._clock.install()

    def _stop(self) -> None:
        if self._mark is not None:
            LISTENERS.remove(self._mark)
        if self._clock is not None:
            self._clock.remove()
        if self._hooks is not None:
            self._hooks.detach()
        self._hooks = self._clock = self._mark = None

    def _attach(self, _: str) -> None:
        if self._hooks is None and is_loaded("jax"):
            self._hooks = attach(self._recorder)


_SHARED = _Shared()
os.register_at_fork(after_in_child=_SHARED.forked)


# --- notebooks ------------------------------------------------------------------------------------


def load_ipython_extension(shell: Any) -> None:
    """Called by %load_ext: `%%firstlight` at the top of a cell shows the verdict under it."""

    def firstlight(line: str, cell: str) -> None:
        """Run the cell, then show what it compiled and what to do about it."""
        from IPython.display import display

        with recording() as recorded:
            result = shell.run_cell(cell)
        display(recorded)
        result.raise_error()  # so that "run all" stops here

    shell.register_magic_function(firstlight, "cell")


def unload_ipython_extension(shell: Any) -> None:
    """Called by %unload_ext."""
    shell.magics_manager.magics["cell"].pop("firstlight", None)
