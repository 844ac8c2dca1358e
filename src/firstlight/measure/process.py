"""Runs one worker process: spawns it, times it by the parent's clock, and always ends it."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

Report = dict[str, Any]  # a worker's job, or its report: plain JSON values
WORKER = Path(__file__).with_name("worker.py")
_TAIL_BYTES = 4000
#: How long a process may take to exit after its report. A priming process may still be writing to
#: the cache; a timed process has nothing left to do.
_EXIT_SECONDS = {"prime": 10.0, "timed": 0.0}


@dataclass(frozen=True)
class Outcome:
    """What the parent observed of a process, on its own clock."""

    spawned_ns: int
    done_ns: int | None  # when `done` arrived, that is, the first result was there
    report: Report | None  # the worker's line, if it sent one
    exit_code: int | None
    timed_out: bool
    out_of_memory: bool
    output_tail: str


@dataclass(frozen=True)
class Turn:
    """The part of one process in a pair that alternates; see `turns`."""

    wait: int  # descriptor of the pipe that it waits on
    pass_on: int  # descriptor of the pipe that it passes the turn to
    first: bool
    meanwhile: Callable[[], object] | None = None  # called while it waits for its first turn


def run_worker(
    job: Report,
    environment: Mapping[str, str],
    timeout_seconds: float,
    affinity: tuple[int, ...] | None = None,
    python: str | None = None,
    worker: Path = WORKER,
    folder: Path | None = None,
    turn: Turn | None = None,
) -> Outcome:
    """Run the worker on `job` in a fresh interpreter and wait for its end.

    The process has its own session: on a timeout, an error or Ctrl-C in the parent the whole group
    is killed, compiler subprocesses included. `python`, `worker` and `folder` select another
    interpreter, copy of the worker and working directory. With a `turn`, its warm part alternates
    with that of another process.
    """
    killed_before = _out_of_memory_kills()
    ends = os.pipe()
    with (
        open(ends[0], "rb", buffering=0) as reading,
        open(ends[1], "wb", buffering=0) as writing,
        tempfile.TemporaryFile() as output,
    ):
        turns = () if turn is None else (turn.wait, turn.pass_on)
        ours = {"fd": writing.fileno(), "turn": turn and (*turns, turn.first)}
        argument = marshal.dumps({**job, **ours}, 2).hex()
        with _pinned(affinity):
            spawned_ns = time.monotonic_ns()
            child = subprocess.Popen(
                [python or sys.executable, "-P", str(worker), argument],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                cwd=folder,
                pass_fds=(writing.fileno(), *turns),
                start_new_session=True,
            )
        try:
            writing.close()
            limit_ns = spawned_ns + int(timeout_seconds * 1e9)
            exit_seconds = _EXIT_SECONDS.get(job["kind"], 1.0)
            report, done_ns, timed_out = _listen(
                reading.fileno(), child, limit_ns, exit_seconds, turn.meanwhile if turn else None
            )
        finally:
            end(child)
        printed = tail(output)
    killed = child.returncode == -signal.SIGKILL and not timed_out and report is None
    memory = bool(report and report.get("out_of_memory"))
    memory = memory or (killed and _out_of_memory_kills() > killed_before)
    return Outcome(spawned_ns, done_ns, report, child.returncode, timed_out, memory, printed)


def _listen(
    reading: int,
    child: subprocess.Popen[bytes],
    deadline_ns: int,
    exit_seconds: float,
    meanwhile: Callable[[], object] | None,
) -> tuple[Report | None, int | None, bool]:
    """Read the pipe until the report or its end: (report, time of `done`, whether it timed out)."""
    received, done_ns, report = b"", None, None
    poller = select.poll()
    poller.register(reading, select.POLLIN | select.POLLHUP)
    while True:
        left_ms = (deadline_ns - time.monotonic_ns()) / 1e6
        if left_ms <= 0 or not poller.poll(left_ms):
            return None, done_ns, True
        now = time.monotonic_ns()
        chunk = os.read(reading, 1 << 20)
        if not chunk:
            break
        received += chunk
        if done_ns is None and b"done\n" in received:
            done_ns = now
        report = _report(received)
        if report is not None:
            break
        if meanwhile is not None and b"ready\n" in received:
            begin = time.monotonic_ns()
            meanwhile()
            meanwhile = None
            deadline_ns += time.monotonic_ns() - begin
    # Either the report is complete, and threads or children of the process are not waited for; or
    # the pipe closed without a report, and the exit code is all that there is to know.
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10.0 if report is None else exit_seconds)
    return report, done_ns, False


def end(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _report(received: bytes) -> Report | None:
    lines = [line for line in received.split(b"\n") if line.startswith(b"{")]
    whole = lines and received.endswith(b"\n")
    return Report(json.loads(lines[-1])) if whole else None


def tail(output: IO[bytes]) -> str:
    end = output.seek(0, os.SEEK_END)
    output.seek(max(0, end - _TAIL_BYTES))
    return output.read().decode("utf-8", "replace")


@contextlib.contextmanager
def _pinned(affinity: tuple[int, ...] | None) -> Iterator[None]:
    """Pin this process to `affinity` while it spawns a child, which inherits it."""
    if affinity is None:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, affinity)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _out_of_memory_kills() -> int:
    """How many processes of this control group the kernel has killed for lack of memory."""
    with contextlib.suppress(OSError):
        text = Path("/sys/fs/cgroup/memory.events").read_text()
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return 0
