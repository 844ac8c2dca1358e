"""What is recorded of a process, from its start to its end. Nothing raises into the program."""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from time import monotonic_ns, time_ns

from firstlight.trace.imports import ImportClock
from firstlight.trace.log_file import SCHEMA, VERSION, LogFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Variables by which launchers of several processes say which one this is.
_RANKS = ("FIRSTLIGHT_RANK", "JAX_PROCESS_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK")


class Recorder:
    """Writes events to a log.

    Times are nanoseconds of the system's monotonic clock, which all processes of a machine share.
    """

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._own_ns = 0  # spent here, not in the program
        self.problems: set[str] = set()
        self.before_end: list[Callable[[], None]] = []  # who still has something to write
        self._imports: list[tuple[int, int]] = []  # begin and end of each outermost one

    def begin(self, started_ns: int | None, whole: bool) -> None:
        """The first event. whole: from the start of the process, not from some point within."""
        self.event(
            "process",
            schema=SCHEMA,
            version=VERSION,
            pid=os.getpid(),
            parent=os.getppid(),
            rank=next((os.environ[v] for v in _RANKS if v in os.environ), None),
            python=sys.version.split()[0],
            command=list(getattr(sys, "orig_argv", [])),
            folder=os.getcwd(),
            started_ns=started_ns,
            recording_ns=monotonic_ns(),
            clock=[monotonic_ns(), time_ns()],
            whole=whole,
            thread=get_ident(),
        )

    def event(self, kind: str, **about: Any) -> None:
        """One line of the log; whatever goes wrong is kept for the next one."""
        begin = monotonic_ns()
        try:
            self._write({"event": kind, **about})
        except Exception as error:
            self.problems.add(f"{kind}: {type(error).__name__}: {error}"[:200])
        self._own_ns += monotonic_ns() - begin

    def problem(self, text: str) -> None:
        """Something that cannot be told; said once, at once: the process may not get to its end."""
        if text not in self.problems:
            self.problems.add(text)
            self.event("problem", problems=[text])

    def safely(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same function for the program to call: its errors stay here."""

        def guarded(*arguments: Any, **named: Any) -> None:
            try:
                function(*arguments, **named)
            except Exception as error:
                self.problem(f"{function.__name__}: {type(error).__name__}: {error}"[:200])

        return guarded

    def imported(self, modules: list[tuple[str, int, int, int]], sites: Any = None) -> None:
        """An import statement is over, with all that it loaded. sites: lines of expensive ones."""
        self.event("imports", modules=modules, sites=sites or {}, thread=get_ident())
        _, begin, total, _ = modules[-1]
        self._imports.append((begin, begin + total))

    def imports_since(self, moment_ns: int) -> int:
        """Nanoseconds of importing from then on."""
        found = 0
        for begin, end in reversed(self._imports):
            if end <= moment_ns:
                break
            found += end - max(begin, moment_ns)
        return found

    def end(self) -> None:
        """The last event."""
        for write in self.before_end:
            self.safely(write)()
        self.event("end", ns=monotonic_ns(), own_ns=self._own_ns, problems=sorted(self.problems))


def process_started_ns() -> int | None:
    """When the system started this process, to its resolution of ten milliseconds."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rsplit(b")", 1)[1].split()[19])
        with open("/proc/uptime", "rb") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    per_second = os.sysconf("SC_CLK_TCK")
    # Both count from the boot of the machine; the monotonic clock may have another origin.
    return monotonic_ns() - int((uptime - ticks / per_second) * 1e9)


def record_process(folder: str, started_ns: int | None) -> Recorder:
    """Record this process from here to its end, into a file in `folder`."""
    import atexit

    log = LogFile(folder)
    recorder = Recorder(log.write)
    recorder.begin(started_ns, whole=True)
    clock = ImportClock(recorder.safely(_when_imported(recorder)))
    if not clock.install():
        recorder.problems.add("imports: this Python loads modules in an unknown way")
    atexit.register(recorder.safely(recorder.end))
    os.register_at_fork(after_in_child=recorder.safely(lambda: recorder.begin(None, whole=False)))
    return recorder


def _when_imported(recorder: Recorder) -> Callable[..., None]:
    attached: set[str] = set()

    def appeared(name: str, last: str) -> bool:
        """Whether a module is there for the first time, loaded as far as its last name."""
        module = sys.modules.get(name)
        if name in attached or module is None or last not in vars(module):
            return False
        attached.add(name)  # first: what is imported for it comes by here as well
        return True

    def imported(modules: list[tuple[str, int, int, int]], sites: Any) -> None:
        recorder.imported(modules, sites)
        if appeared("jax", "jit"):
            from firstlight.trace.jax_hooks import attach

            attach(recorder)
        if appeared("torch", "compile"):
            version = str(sys.modules["torch"].__version__)
            recorder.event("torch", version=version, ns=monotonic_ns())
        if appeared("torch._dynamo", "reset"):  # which torch loads with the first torch.compile
            from firstlight.trace.torch_hooks import attach as attach_torch

            attach_torch(recorder)

    return imported
