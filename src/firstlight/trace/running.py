"""Runs a program under the trace, with the same Python, streams, signals and exit code as alone.

The user waits for this module, so what reports need is imported only while the program runs.
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
    """How the program ended, and its seconds as measured from outside."""

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
    """The command line of the program without us."""
    return [sys.executable, *(["-m"] if module else []), *program]


def run(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    output: int | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """Run `command` to its end, with its logs in `folder`.
    variables: additions to its environment. output: a descriptor for stdout and stderr, with empty
    input; None: our streams. meanwhile: called while it runs, if there is another processor."""
    environment = {**os.environ, **(variables or {}), "FIRSTLIGHT_TRACE": str(folder.absolute())}
    quiet = None if output is None else subprocess.DEVNULL
    with passing_signals() as child:
        begin = monotonic_ns()
        environment["FIRSTLIGHT_TRACE_SPAWNED_NS"] = str(begin)
        # The program inherits all descriptors: `3< file` must still work.
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
    """Run work in a thread that gets no signals: those would not wake the main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        Thread(target=work, daemon=True).start()  # it inherits the mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _note_exit(folder: Path, pid: int, outcome: Outcome, end_ns: int) -> None:
    """Add to the program's log what only its parent knows: when and how it ended."""
    import json

    path = log_path(str(folder), pid)
    about = {"ns": end_ns, "code": outcome.code, "signal": outcome.signal}
    # A full disk must not hide how the program ended.
    with suppress(OSError):
        if os.path.exists(path):
            with open(path, "a", encoding="utf-8") as log:
                log.write(json.dumps({"event": "exited", **about}) + "\n")


def end_like(outcome: Outcome) -> int:
    """The program's exit code; if a signal ended the program, end this process the same way."""
    if outcome.signal is None:
        return outcome.code or 0
    import resource

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # a broken pipe, or closed
            stream.flush()
    # No core file of ours: if anyone wants one, it is the program's.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if outcome.signal not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(outcome.signal, signal.SIG_DFL)
    os.kill(os.getpid(), outcome.signal)
    return 128 + outcome.signal  # the signal is blocked


def new_folder(wanted: Path | None, program: str) -> Path:
    """Create an empty folder; by default named after the time and the program."""
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
        why = f"{wanted} cannot be created: {error.strerror}. Give another folder with --out."
        raise _refused(why) from None
    return wanted


def _refused(why: str) -> Exception:
    from firstlight.records import OutputError

    return OutputError(why)


def dumping(folder: Path) -> dict[str, str]:
    """Environment variables that make XLA write out the programs that it compiles."""
    flags = f"--xla_dump_to={(folder / 'hlo').absolute()} --xla_dump_hlo_as_text"
    return {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}


def require_hook() -> None:
    """Raise NotRecordedError if Python would not start the recorder. Called before the program."""
    import site

    folders = {*site.getsitepackages(), site.getusersitepackages()}
    if any((Path(folder) / HOOK).is_file() for folder in folders) or _starts_recorder():
        return
    from firstlight.trace.read.log_events import NotRecordedError

    raise NotRecordedError(
        f"{sys.executable} would not record anything: recording is started by {HOOK}, which is "
        f"missing in {sorted(folders)[0]}. Reinstall the package (pip install --force-reinstall "
        "--no-deps firstlight) or, for a checkout (pip install -e), copy "
        "src/firstlight-trace.pth there."
    )


def compile_bytecode() -> None:
    """Write the .pyc files of the recorder, as an installation would: otherwise, with
    PYTHONDONTWRITEBYTECODE, every traced process would spend time compiling it."""
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
    """A message for a program that ran and left no log."""
    return (
        "The program ran, but left no log: either it started no Python that reads our "
        f"site-packages (with -S, or in another environment, {HOOK} is not read: run the program "
        f"with {command[0]}, without -S), or the log could not be written, or the program "
        "removed it."
    )


def _starts_recorder() -> bool:
    """Whether a new Python starts the recorder: the hook may be elsewhere on its path."""
    question = "import sys; sys.exit('firstlight.trace.startup' not in sys.modules)"
    # A folder that cannot be created, so that this leaves nothing behind.
    environment = {**os.environ, "FIRSTLIGHT_TRACE": os.path.join(os.devnull, "none")}
    command = [sys.executable, "-c", question]
    return subprocess.call(command, env=environment, stderr=subprocess.DEVNULL) == 0
