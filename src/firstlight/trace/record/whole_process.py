"""Records a process from its start to its end, and each framework once it is imported."""

from __future__ import annotations

import os
import sys
from time import monotonic_ns

from firstlight.trace.record.import_clock import ImportClock
from firstlight.trace.record.log_file import LogFile
from firstlight.trace.record.marks import LISTENERS
from firstlight.trace.record.recorder import Recorder

#: The modules to listen to; each is loaded far enough once it has this name.
_LAST_NAMES = {"jax": "jit", "torch": "compile", "torch._dynamo": "reset"}


def process_started_ns() -> int | None:
    """When the system started this process, to ten milliseconds; None if it is unknown."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rsplit(b")", 1)[1].split()[19])
        with open("/proc/uptime", "rb") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    per_second = os.sysconf("SC_CLK_TCK")
    # Both count from boot; the monotonic clock may have another origin.
    return monotonic_ns() - int((uptime - ticks / per_second) * 1e9)


def record_process(folder: str, started_ns: int | None) -> Recorder:
    """Record this process from here to its end, in a file in `folder`. OSError: not writable."""
    import atexit

    recorder = Recorder(LogFile(folder).write)
    recorder.begin(started_ns, whole=True)
    waiting = set(_LAST_NAMES)

    def attach(name: str) -> None:
        if name not in waiting or not is_loaded(name):
            return
        try:
            waiting.remove(name)
        except KeyError:  # another thread was first
            return
        _attach(name, recorder)

    appeared = recorder.safely(attach)
    clock = ImportClock(recorder.safely(recorder.imported), appeared, tuple(_LAST_NAMES))
    if not clock.install():
        recorder.problems.add("imports: how this Python loads modules is unknown")
    for name in _LAST_NAMES:  # what was imported before the recorder was
        appeared(name)
    LISTENERS.append(recorder.safely(recorder.mark_here))
    atexit.register(recorder.safely(recorder.end))
    recorder.after_fork.append(clock.forked)
    os.register_at_fork(after_in_child=recorder.safely(recorder.forked))
    return recorder


def _attach(name: str, recorder: Recorder) -> None:
    if name == "jax":
        from firstlight.trace.record.jax_hooks import attach

        attach(recorder)
    elif name == "torch":
        version = str(sys.modules["torch"].__version__)
        recorder.event("torch", version=version, ns=monotonic_ns())
    else:  # torch._dynamo, which torch loads with the first torch.compile
        from firstlight.trace.record.torch_hooks import attach as attach_torch

        attach_torch(recorder)


def is_loaded(name: str) -> bool:
    """Whether one of these modules is completely loaded."""
    module = sys.modules.get(name)
    return module is not None and _LAST_NAMES[name] in vars(module)
