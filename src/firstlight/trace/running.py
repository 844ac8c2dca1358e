"""Runs a program under the trace: the same Python, streams, signals and exit code as without us.

What reports need is imported while the program runs, not before: the user waits for this module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Thread
from time import monotonic_ns
from typing import NamedTuple

from firstlight.trace.passing_signals import passing_signals
from firstlight.trace.record.log_format import log_path

HOOK = "firstlight-trace.pth"


class Outcome(NamedTuple):
    """How the program ended, and the seconds that it took, measured outside of it."""

    code: int | None  # None: ended by a signal
    signal: int | None
    seconds: float

    @property
    def succeeded(self) -> bool:
        return self.code == 0

    @property
    def words(self) -> str:
        if self.signal is None:
            return f"ended with exit code {self.code}"
        named = {known.value: known.name for known in signal.Signals}
        return f"was ended by {named.get(self.signal, f'signal {self.signal}')}"


def command_of(program: Sequence[str], module: bool) -> list[str]:
    """What a user would have typed without us."""
    return [sys.executable, *(["-m"] if module else []), *program]


def run(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    output: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """Run `command` to its end, with its logs in `folder`.
    variables: more for its environment. output: a descriptor for stdout and stderr, and then no
    input; without one it has ours. meanwhile: called while it runs, given another processor."""
    environment = {**os.environ, **(variables or {}), "FIRSTLIGHT_TRACE": str(folder.absolute())}
    quiet = None if output is None else subprocess.DEVNULL
    with passing_signals() as child:
        begin = monotonic_ns()
        environment["FIRSTLIGHT_TRACE_SPAWNED_NS"] = str(begin)
        # Descriptors that a shell gave us are the program's: `3< file` must still work.
        process = subprocess.Popen(
            command, env=environment, close_fds=False, stdin=quiet, stdout=output, stderr=output
        )
        child.started(process)
        if meanwhile is not None and _processors() > 1:
            _start_without_signals(meanwhile)
        code = process.wait()
    end = monotonic_ns()
    seconds = (end - begin) / 1e9
    outcome = Outcome(code, None, seconds) if code >= 0 else Outcome(None, -code, seconds)
    _note_exit(folder, process.pid, outcome, end)
    return outcome


def _start_without_signals(work: Callable[[], None]) -> None:
    """Do it in a thread to which no signal comes: one that does would not wake the main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        Thread(target=work, daemon=True).start()  # which inherits what is blocked
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _processors() -> int:
    """How many this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _note_exit(folder: Path, pid: int, outcome: Outcome, end_ns: int) -> None:
    """Add to the program's log what only we can know: when it was gone, and how."""
    import json

    path = log_path(str(folder), pid)
    about = {"ns": end_ns, "code": outcome.code, "signal": outcome.signal}
    # A disk that is full must not hide how the program ended.
    with suppress(OSError):
        if os.path.exists(path):
            with open(path, "a", encoding="utf-8") as log:
                log.write(json.dumps({"event": "exited", **about}) + "\n")


def end_like(outcome: Outcome) -> int:
    """The exit code of the program; a program that a signal ended makes the same of us."""
    if outcome.signal is None:
        return outcome.code or 0
    import resource

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # nobody reads it, or it is closed
            stream.flush()
    # Whose memory is worth a file has written it already.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if outcome.signal not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(outcome.signal, signal.SIG_DFL)
    os.kill(os.getpid(), outcome.signal)
    return 128 + outcome.signal  # where the signal is blocked


def new_folder(wanted: Path | None, program: str) -> Path:
    """A folder with nothing in it; by default one named after the time and the program."""
    if wanted is None:
        from datetime import datetime

        name = f"{datetime.now():%Y%m%d-%H%M%S}-{Path(program).stem or 'program'}"
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        folders = (Path("firstlight-traces") / name for name in names)
        wanted = next(folder for folder in folders if not folder.exists())
    elif wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
        raise _refused(f"{wanted} exists and is not empty. Give a new folder with --out.")
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{wanted}: cannot be made: {error.strerror}. Give another folder with --out."
        raise _refused(why) from None
    return wanted


def _refused(why: str) -> Exception:
    from firstlight.records import OutputError

    return OutputError(why)


def dumping(folder: Path) -> dict[str, str]:
    """Variables that make XLA keep the programs that it compiles."""
    flags = f"--xla_dump_to={(folder / 'hlo').absolute()} --xla_dump_hlo_as_text"
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}


def require_hook() -> None:
    """Raise where Python would not start the recorder; asked before the program runs."""
    import site

    folders = {*site.getsitepackages(), site.getusersitepackages()}
    if any((Path(folder) / HOOK).is_file() for folder in folders) or _starts_recorder():
        return
    from firstlight.trace.read.log_events import NotRecordedError

    raise NotRecordedError(
        f"{sys.executable} would not record anything: it reads {HOOK} at its start, and there is "
        f"none in {sorted(folders)[0]}. It comes with the package: pip install --force-reinstall "
        "--no-deps firstlight. From a checkout (pip install -e), copy src/firstlight-trace.pth "
        "there."
    )


def compile_bytecode() -> None:
    """Write the .pyc files of the recorder, as an installation would: with PYTHONDONTWRITEBYTECODE
    every traced process would compile it anew, as time of its own."""
    trace = Path(__file__).parent
    for folder in (trace.parent, trace, trace / "record", trace.parent / "telemetry"):
        if any(map(_is_not_compiled, folder.glob("*.py"))):
            import compileall

            compileall.compile_dir(folder, maxlevels=0, quiet=2)


def _is_not_compiled(source: Path) -> bool:
    name = f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    try:
        compiled = os.stat(source.parent / "__pycache__" / name)
    except OSError:
        return True
    return compiled.st_mtime < source.stat().st_mtime


def why_no_log(command: Sequence[str]) -> str:
    """Words for a program that ran and left no log."""
    return (
        "The program ran, but there is no log of it: either no Python that reads its site-packages "
        f"was started (one with -S, or of another environment, does not read {HOOK}: run the "
        f"program with {command[0]}, without -S), or the log could not be written, or the program "
        "removed it."
    )


def _starts_recorder() -> bool:
    """Ask Python itself: the file may be somewhere else on its path."""
    question = "import sys; sys.exit('firstlight.trace.startup' not in sys.modules)"
    # A folder that cannot be made: asking leaves nothing behind.
    environment = {**os.environ, "FIRSTLIGHT_TRACE": os.path.join(os.devnull, "none")}
    command = [sys.executable, "-c", question]
    return subprocess.call(command, env=environment, stderr=subprocess.DEVNULL) == 0
