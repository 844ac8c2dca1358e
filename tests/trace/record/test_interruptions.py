"""Signals, forks, full disks and long runs, at any moment of the recorder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trace_samples as samples

from firstlight.trace.findings import load
from firstlight.trace.findings.ci_limits import Limits, exceeded
from firstlight.trace.read import recompiles
from firstlight.trace.read.log_events import read_logs
from firstlight.trace.read.model import Trace
from firstlight.trace.record.log_file import LogFile
from firstlight.trace.record.program_errors import is_of_program
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.show.verdict import headline

pytestmark = pytest.mark.slow

Write = Callable[[str, str], Path]


class LateError(Exception):
    """Raised by the program at its time limit."""


@pytest.fixture
def time_limit() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise LateError

    before = signal.signal(signal.SIGUSR1, late)
    yield
    signal.signal(signal.SIGUSR1, before)


def output_of(program: Path, **environment: str) -> str:
    """Run a program in its folder; its warnings (about forks) are ignored."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program],
        env={**os.environ, **environment},
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def traced(folder: Path, program: Path) -> Trace:
    output_of(program, FIRSTLIGHT_TRACE=str(folder / "logs"))
    return load(folder / "logs")


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("time_limit")
def test_an_error_of_a_signal_handler_during_a_write_reaches_the_program_without_us() -> None:
    def interrupted(_: dict[str, Any]) -> None:
        signal.raise_signal(signal.SIGUSR1)

    recorder = Recorder(interrupted)
    with pytest.raises(LateError) as caught:
        recorder.safely(recorder.event)("stage")
    here = "test_an_error_of_a_signal_handler_during_a_write_reaches_the_program_without_us"
    assert [entry.name for entry in caught.traceback] == [here, "interrupted", "late"]
    assert not recorder.problems


def test_our_own_errors_stay_here_even_with_a_frame_among_the_arguments() -> None:
    def broken(event: dict[str, Any], frame: FrameType) -> None:
        raise LateError

    recorder = Recorder(lambda event: broken(event, sys._getframe()))
    recorder.safely(lambda: recorder.event("stage"))()
    assert recorder.problems == {"stage: LateError: "}


def test_signal_handlers_are_recognised_with_any_signature() -> None:
    class Limit:
        def reached(self, number: int, frame: FrameType | None) -> None:
            raise LateError

    def any_number(*_: Any) -> None:
        raise LateError

    for handler in (any_number, Limit().reached):
        with pytest.raises(LateError) as caught:
            handler(14, sys._getframe())
        assert is_of_program(caught.value)


def test_an_aborted_stage_does_not_hide_later_results(tmp_path: Path, write: Write) -> None:
    program = write(
        "program.py",
        """
        import jax, numpy as np
        raised = []
        def listener(event, value, **_):
            if not raised and "compile" in event:
                raised.append(event)
                raise ValueError("of the program")
        jax.monitoring.register_scalar_listener(listener)
        f = jax.jit(lambda x: x + 1)
        try:
            f(np.float32(1))
        except ValueError:
            pass
        float(f(np.float32(2)))  # line 14
        """,
    )
    (process,) = traced(tmp_path, program).processes
    assert process.first_result_site is not None
    assert process.first_result_site.line == 14


def test_a_handler_that_compiles_while_a_stage_ends_loses_nothing(
    tmp_path: Path, write: Write
) -> None:
    program = write(
        "program.py",
        """
        import signal, jax, numpy as np
        compiled = []  # as JAX counts, which may reuse what a handler has just compiled
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, seconds, **_: compiled.append(event))
        def compile_one():
            jax.jit(lambda x: x + 1)(np.float32(1))
        def alarm(*_):
            compile_one()
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # once, so as not to overload a slow machine
        compile_one()  # JAX imports modules here, and a second compile during that fails
        signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        for _ in range(25):
            compile_one()
        signal.setitimer(signal.ITIMER_REAL, 0)
        import os
        logs = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 2
                and os.path.exists(f"/proc/self/fd/{n}")]
        print(compiled.count("/jax/core/compile/backend_compile_duration"),
              sum(name.endswith(".jsonl") for name in logs))
        """,
    )
    output = output_of(program, FIRSTLIGHT_TRACE=str(tmp_path / "logs"))
    by_jax, opened = map(int, output.split())
    trace = load(tmp_path / "logs")
    assert (trace.compile_count, opened) == (by_jax, 1)
    assert by_jax > 26  # the handler's among them
    assert "_end" not in str(trace.processes[0].problems)


# --- forks ----------------------------------------------------------------------------------------


def test_a_fork_that_becomes_another_program_has_no_log(tmp_path: Path, write: Write) -> None:
    program = write(
        "program.py",
        """
        import os, subprocess
        import jax, numpy as np
        float(jax.jit(lambda x: x + 1)(np.float32(1)))
        subprocess.run(["true"], preexec_fn=os.setsid, check=True)
        """,
    )
    assert len(traced(tmp_path, program).processes) == 1
    assert len(read_logs(tmp_path / "logs")) == 1


def test_a_process_forked_while_a_thread_records_can_record(tmp_path: Path, write: Write) -> None:
    program = write(
        "program.py",
        """
        import os, sys, threading
        from firstlight.trace import recording, session
        held, over = threading.Event(), threading.Event()
        def work():
            with session._SHARED._lock:
                held.set()
                over.wait()
        thread = threading.Thread(target=work)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            with recording():
                pass
            os._exit(0)
        over.set()
        thread.join()
        sys.exit(os.waitpid(child, 0)[1])
        """,
    )
    output_of(program)


# --- a log that lacks something -------------------------------------------------------------------


def test_after_half_a_line_the_next_one_is_whole_again(tmp_path: Path, write: Write) -> None:
    program = write(
        "program.py",
        """
        import os, resource, sys
        from firstlight.trace.record.log_file import LogFile
        log = LogFile("logs")
        log.write({"event": "first"})
        (path,) = [os.path.join("logs", name) for name in os.listdir("logs")]
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 8, hard))
        try:
            log.write({"event": "cut"})
        except OSError:
            print("told")
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        log.write({"event": "last"})
        print(open(path).read(), end="")
        """,
    )
    assert output_of(program).splitlines() == [
        "told",
        '{"event":"first"}',
        '{"event"',
        '{"event":"last"}',
    ]


def test_limits_on_compiles_are_exceeded_if_some_may_be_missing() -> None:
    why = "3 events could not be written"
    trace = samples.trace(processes=(samples.process(incomplete=why),))
    (excess,) = exceeded(trace, Limits(max_compiles=100))
    assert (excess.limit, excess.found) == ("max-compiles", None)
    assert excess.sentence == f"compiles may be missing: {why}"
    assert exceeded(trace, Limits(max_ttfr_seconds=100.0)) == ()


def test_events_that_could_not_be_written_are_counted_at_the_end(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []

    def write(event: dict[str, Any]) -> None:
        if event["event"] == "stage":
            raise OSError(28, "No space left on device")
        events.append(event)

    recorder = Recorder(write)
    recorder.begin(None, whole=True)
    recorder.event("stage")
    recorder.event("stage")
    recorder.end()
    assert events[-1]["lost"] == 2


# --- long runs ------------------------------------------------------------------------------------


def test_the_work_per_recompile_does_not_grow_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0
    differences = recompiles.differences

    def counted(*signatures: Any) -> Any:
        nonlocal compared
        compared += 1
        return differences(*signatures)

    monkeypatch.setattr(recompiles, "differences", counted)
    compiles = [samples.again(float(n), (n, 4)) for n in range(500)]
    told = recompiles.with_reasons(compiles)
    assert {one.recompile_reason for one in told[1:]} == {"shape"}
    assert compared <= 500 * recompiles._MAX_COMPARED


def test_an_early_signature_is_recognised_after_many_others() -> None:
    compiles = [samples.again(float(n), (n, 4)) for n in range(200)]
    told = recompiles.with_reasons([*compiles, samples.again(200.0, (0, 4))])
    assert told[-1].recompile_reason == "unknown"


def test_lost_events_are_reported_with_the_next_line_since_the_process_may_have_no_end() -> None:
    events: list[dict[str, Any]] = []
    full = [True]

    def write(event: dict[str, Any]) -> None:
        if full[0] and event["event"] == "stage":
            raise OSError(28, "No space left on device")
        events.append(event)

    recorder = Recorder(write)
    recorder.event("stage")
    recorder.event("stage")
    full[0] = False
    recorder.event("jax")
    recorder.event("jax")
    assert [event["event"] for event in events] == ["jax", "problem", "jax"]
    assert "No space left on device" in events[1]["missing"]


def test_a_folder_that_cannot_be_written_is_reported_once_and_the_program_runs_untraced(
    tmp_path: Path, write: Write
) -> None:
    program = write(
        "program.py",
        """
        import os, subprocess, sys
        print("FIRSTLIGHT_TRACE" in os.environ, flush=True)
        if len(sys.argv) == 1:
            subprocess.run([sys.executable, __file__, "child"])
        """,
    )
    done = subprocess.run(
        [sys.executable, program],
        # A file in place of the folder fails even for root, who may write anywhere else.
        env={**os.environ, "FIRSTLIGHT_TRACE": str(program / "logs")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "False\nFalse\n")
    assert done.stderr == (
        f"firstlight: nothing is recorded: {program / 'logs'} cannot be written to (Not a "
        "directory). Set FIRSTLIGHT_TRACE to another folder.\n"
    )


def test_a_full_disk_is_not_mistaken_for_a_program_without_jax(tmp_path: Path) -> None:
    """The log has only its start, cut within a line."""
    folder = tmp_path / "logs"
    recorder = Recorder(LogFile(str(folder)).write)
    recorder.begin(None, whole=True)
    (path,) = folder.glob("*.jsonl")
    path.write_text(path.read_text() + '{"event":"imports","modu')
    trace = load(folder)
    assert headline(trace).startswith("Nothing is known of JAX in this program: the log breaks off")
    (excess,) = exceeded(trace, Limits(max_compiles=1000))
    assert "the log breaks off within a line" in excess.sentence
