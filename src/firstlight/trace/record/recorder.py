"""Writes the events of a process, from its start to its end. Nothing raises into the program."""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from os import getpid
from time import monotonic_ns, time_ns

from firstlight.trace.record.log_format import SCHEMA, VERSION
from firstlight.trace.record.program_errors import is_of_program, leave_us_out, pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

#: Variables in which launchers of several processes put the rank of each.
_RANKS = ("FIRSTLIGHT_RANK", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")


class Recorder:
    """Writes events to a log. Times are nanoseconds of the machine's monotonic clock."""

    def __init__(self, write: Callable[[dict[str, object]], None]) -> None:
        self._write = write
        self.before_end: list[Callable[[], None]] = []  # write what is still pending
        self.after_fork: list[Callable[[], None]] = []  # drop the parent's state
        self._ended = -1  # the process whose end was written
        self._head: dict[str, object] | None = None  # of a fork, written with its first event
        #: What identifies the first result: `train.py:27`, or a pattern of an output line.
        self.first_result_pattern = os.environ.get("FIRSTLIGHT_FIRST_RESULT") or None
        self._reset()

    def _reset(self) -> None:
        self._own_ns = 0  # spent here, not in the program
        self._lost = 0  # events that could not be written
        self._loss_is_written = False
        self.problems: set[str] = set()
        self._imports: list[tuple[int, int]] = []  # begin and end of each outermost one
        self.marked = False

    def begin(self, started_ns: int | None, whole: bool) -> None:
        """Write the first event; OSError if that is impossible.
        whole: the recording covers the process from its start."""
        self._write(self._about_process(started_ns, whole))

    def _about_process(self, started_ns: int | None, whole: bool) -> dict[str, object]:
        try:
            folder = os.getcwd()
        except OSError:  # it was removed
            folder = None
        return {
            "event": "process",
            "schema": SCHEMA,
            "version": VERSION,
            "pid": getpid(),
            "parent": os.getppid(),
            "rank": next((os.environ[v] for v in _RANKS if v in os.environ), None),
            "python": sys.version.split()[0],
            "command": list(getattr(sys, "orig_argv", [])),
            "folder": folder,
            "started_ns": started_ns,
            "recording_ns": monotonic_ns(),
            "clock": [monotonic_ns(), time_ns()],
            "whole": whole,
            "thread": get_ident(),
            "first_result_pattern": self.first_result_pattern,
        }

    def event(self, kind: str, **about: object) -> None:
        """Write one line of the log; a failure is reported with the next one."""
        begin = monotonic_ns()
        try:
            if self._head is not None:
                head, self._head = self._head, None
                self._write(head)
            self._write({"event": kind, **about})
            if self._lost and not self._loss_is_written and kind != "end":  # `end` has it anyway
                self._loss_is_written = True  # now: the process may not reach its end
                missing = f"events could not be written ({'; '.join(sorted(self.problems))})"
                self._write({"event": "problem", "problems": [], "missing": missing})
        except Exception as error:
            pass_on(error)
            self._lost += 1
            self.problems.add(f"{kind}: {type(error).__name__}: {error}"[:200])
        self._own_ns += monotonic_ns() - begin

    def problem(self, text: str, missing: str | None = None) -> None:
        """Report something that cannot be recorded, at once: the process may not reach its end.
        missing: why the log may lack compiles."""
        if text not in self.problems:
            self.problems.add(text)
            self.event("problem", problems=[text], missing=missing)

    def safely(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function, for the program to call: its own errors are reported, not raised."""
        name = getattr(function, "__name__", "listener")

        def guarded(*arguments: object, **named: object) -> None:
            try:
                function(*arguments, **named)
            except BaseException as error:
                if not isinstance(error, Exception) or is_of_program(error):
                    leave_us_out(error)
                    raise
                try:
                    self.problem(f"{name}: {type(error).__name__}: {error}"[:200])
                except Exception as again:  # at the recursion limit nothing can be written
                    pass_on(again)

        return guarded

    def mark(self, how: str, site: object) -> None:
        """Record the first result. how: marked in the "code", by a "line" or an "output"."""
        if not self.marked:
            self.marked = True
            self.event("marked", ns=monotonic_ns(), how=how, site=site)

    def mark_here(self, frame: FrameType) -> None:
        """Record the first result as marked by this frame of the program."""
        self.mark("code", [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname])

    def imported(self, modules: list[Any], sites: object = None) -> None:
        """Record an outermost import. modules: the clock's list; sites: of expensive ones."""
        rows = list(zip(*[iter(modules)] * 4, strict=True))
        self.event("imports", modules=rows, sites=sites or {}, thread=get_ident())
        _, begin, total, _ = modules[-4:]
        self._imports.append((begin, begin + total))

    def imports_since(self, moment_ns: int) -> int:
        """Nanoseconds spent importing since a moment."""
        return sum(max(0, end - max(begin, moment_ns)) for begin, end in self._imports)

    def end(self) -> None:
        """Write the last event, once per process."""
        if self._ended == getpid():
            return
        self._ended = getpid()
        for write in self.before_end:
            self.safely(write)()
        about = {"own_ns": self._own_ns, "lost": self._lost, "problems": sorted(self.problems)}
        self.event("end", ns=monotonic_ns(), **about)

    def forked(self) -> None:
        """Start over after a fork: the new process has its own log."""
        self._reset()
        # Most forks become another program at once: without an event they get no log.
        self._head = self._about_process(None, whole=False)
        for forget in (*self.after_fork, self._end_with_multiprocessing):
            self.safely(forget)()

    def _end_with_multiprocessing(self) -> None:
        """Workers of multiprocessing end without atexit, and clear finalizers when they start."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(
                self, lambda _: util.Finalize(None, self.safely(self.end), exitpriority=-100)
            )
