"""What is recorded of a process, from its start to its end. Nothing raises into the program."""

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

#: Variables by which launchers of several processes say which one this is.
_RANKS = ("FIRSTLIGHT_RANK", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")


class Recorder:
    """Writes events to a log. Times are nanoseconds of the machine's monotonic clock."""

    def __init__(self, write: Callable[[dict[str, object]], None]) -> None:
        self._write = write
        self.before_end: list[Callable[[], None]] = []  # what still has something to write
        self.after_fork: list[Callable[[], None]] = []  # what has something of the parent's
        self._ended = -1  # the process whose end was written
        self._head: dict[str, object] | None = None  # of a fork, written with its first event
        #: What the first result is known by: `train.py:27`, or a pattern of a line put out.
        self.first_result_pattern = os.environ.get("FIRSTLIGHT_FIRST_RESULT") or None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._own_ns = 0  # spent here, not in the program
        self._lost = 0  # events that could not be written
        self._loss_is_written = False
        self.problems: set[str] = set()
        self._imports: list[tuple[int, int]] = []  # begin and end of each outermost one
        self.marked = False

    def begin(self, started_ns: int | None, whole: bool) -> None:
        """The first event. OSError: it cannot be written. whole: from the start of the process."""
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
        """One line of the log; whatever goes wrong is written with the next one."""
        begin = monotonic_ns()
        try:
            if self._head is not None:
                head, self._head = self._head, None
                self._write(head)
            self._write({"event": kind, **about})
            if self._lost and not self._loss_is_written and kind != "end":  # which says so itself
                self._loss_is_written = True  # now: the process may not get to its end
                missing = f"events could not be written ({'; '.join(sorted(self.problems))})"
                self._write({"event": "problem", "problems": [], "missing": missing})
        except Exception as error:
            pass_on(error)
            self._lost += 1
            self.problems.add(f"{kind}: {type(error).__name__}: {error}"[:200])
        self._own_ns += monotonic_ns() - begin

    def problem(self, text: str, missing: str | None = None) -> None:
        """Something that cannot be known, written at once: the process may not get to its end.
        missing: why compiles may not be in the log."""
        if text not in self.problems:
            self.problems.add(text)
            self.event("problem", problems=[text], missing=missing)

    def safely(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same function for the program to call: its errors stay here."""
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
                except Exception as again:  # at the end of the stack nothing can be written
                    pass_on(again)

        return guarded

    def mark(self, how: str, site: object) -> None:
        """The first result is here. how: marked in the "code", by a "line" or an "output"."""
        if not self.marked:
            self.marked = True
            self.event("marked", ns=monotonic_ns(), how=how, site=site)

    def mark_here(self, frame: FrameType) -> None:
        """The same, marked by this frame of the program."""
        self.mark("code", [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname])

    def imported(self, modules: list[Any], sites: object = None) -> None:
        """An import is over. modules: as the import clock lists them; sites: of expensive ones."""
        told = list(zip(*[iter(modules)] * 4, strict=True))
        self.event("imports", modules=told, sites=sites or {}, thread=get_ident())
        _, begin, total, _ = modules[-4:]
        self._imports.append((begin, begin + total))

    def imports_since(self, moment_ns: int) -> int:
        """Nanoseconds of importing from then on."""
        return sum(max(0, end - max(begin, moment_ns)) for begin, end in self._imports)

    def end(self) -> None:
        """The last event, once for each process."""
        if self._ended == getpid():
            return
        self._ended = getpid()
        for write in self.before_end:
            self.safely(write)()
        about = {"own_ns": self._own_ns, "lost": self._lost, "problems": sorted(self.problems)}
        self.event("end", ns=monotonic_ns(), **about)

    def forked(self) -> None:
        """This is a new process, which has a log of its own: what was heard is of its parent."""
        self._begin_anew()
        # Most forks become another program at once: they have nothing to write, and no log.
        self._head = self._about_process(None, whole=False)
        for forget in (*self.after_fork, self._end_with_multiprocessing):
            self.safely(forget)()

    def _end_with_multiprocessing(self) -> None:
        """Its workers end without atexit, and empty the list that they have when they start."""
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.register_after_fork(
                self, lambda _: util.Finalize(None, self.safely(self.end), exitpriority=-100)
            )
