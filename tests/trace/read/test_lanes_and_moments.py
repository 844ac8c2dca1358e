"""Each thread has its own lane, and a moment has the same number everywhere."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from trace_logs import MAIN, POOL, Log, compile_in

from firstlight.trace.findings import load
from firstlight.trace.findings.ci_limits import Limits, exceeded
from firstlight.trace.read import phases
from firstlight.trace.read.model import Trace
from firstlight.trace.show.chrome_trace import chrome_trace
from firstlight.trace.show.html import render
from firstlight.trace.show.terminal import print_trace


def shown(trace: Trace) -> str:
    output = io.StringIO()
    print_trace(trace, Console(file=output, width=100, highlight=False))
    return " ".join(output.getvalue().split())


def with_a_pool(folder: Path) -> Trace:
    """A thread compiles from 300 to 700 ms, while the main one waits for it."""
    log = Log().jax()
    compile_in(log, 1, 300, 700, POOL, thread_name="pool-0")
    compile_in(log, 2, 750, 800, MAIN, thread_name="MainThread")
    log.first_result(900, ["/p/a.py", 9, "main"])
    return log.end(1000).read(folder / "logs")


def test_compiles_of_a_thread_are_in_its_own_lane(tmp_path: Path) -> None:
    trace = with_a_pool(tmp_path)
    (process,) = trace.processes
    (thread,) = process.threads
    assert thread.name == "pool-0"
    (span,) = thread.timeline
    told = (span.kind, span.begin_seconds, span.end_seconds)
    assert told == ("compile", pytest.approx(0.3), pytest.approx(0.7))
    # The lane of the main thread still adds up to its time, without the other thread's.
    assert sum(process.phases_seconds.values()) == pytest.approx(1.0)
    assert process.phases_seconds["compile"] == pytest.approx(0.05)
    page = render(trace)
    assert re.findall(r'class="lane-name">([^<]*)<', page) == ["main thread", "pool-0"]
    assert page.count('class="lane"') == 2


def test_time_in_other_threads_is_shown_next_to_the_main_one(
    tmp_path: Path,
) -> None:
    trace = with_a_pool(tmp_path)
    assert "At the same time, in 1 other thread: compiling 400 ms." in shown(trace)
    assert phases.in_other_threads(trace.processes[0], 0.5) == {"compile": pytest.approx(0.2)}


def launched(folder: Path) -> Trace:
    """A launcher, and a process that it starts 200 ms later: first result 3.7 s after that."""
    Log(pid=1, started=1000).end(4500).write(folder)
    worker = Log(pid=2, started=1200, parent=1).jax()
    compile_in(worker, 1, 1000, 3500, MAIN)
    worker.first_result(3700, ["/p/a.py", 9, "main"])
    worker.end(4000).write(folder)
    return load(folder)


def test_a_moment_is_counted_from_the_start_of_the_program_everywhere(tmp_path: Path) -> None:
    trace = launched(tmp_path / "logs")
    assert trace.time_to_first_result_seconds == pytest.approx(3.9)
    worker = trace.processes[1]
    assert worker.first_result_seconds == trace.time_to_first_result_seconds
    assert worker.starts_at_seconds == pytest.approx(0.2)
    (function,) = trace.functions
    assert function.compiles[0].begin_seconds == pytest.approx(1.2)
    text, page = shown(trace), re.sub(r"<[^>]*>", " ", render(trace))
    assert "First result after 3.90 s" in text
    assert (
        "3.70 s of process 2 went, from its start at 200 ms until the first result at 3.90 s"
        in text
    )
    for moment in ("first result 3.90 s", "First result after 3.90 s"):
        assert moment in page


def test_what_a_package_read_and_what_was_put_out_are_counted_from_there_as_well(
    tmp_path: Path,
) -> None:
    """Read 3.0 s and output 3.7 s after the start of a process that began 200 ms later."""
    Log(pid=1, started=1000).end(4500).write(tmp_path)
    worker = Log(pid=2, started=1200, parent=1).jax()
    compile_in(worker, 1, 1000, 2500, MAIN)
    worker.event("first_result", ns=worker.at(3000), site=["/p/a.py", 9, "main"], by="numpyro")
    worker.event("output", ns=worker.at(3700), site=["/p/a.py", 10, "main"], reads=1)
    trace = load(worker.end(4000).write(tmp_path))
    process = trace.processes[1]
    assert process.first_read is not None and process.first_output is not None
    assert process.first_read.seconds == pytest.approx(3.2)
    assert process.first_output.seconds == process.first_result_seconds == pytest.approx(3.9)
    assert "First result after 3.90 s (numpyro read an array after 3.20 s)" in shown(trace)
    (mark,) = [event for event in chrome_trace(trace)["traceEvents"] if event["ph"] == "i"]
    assert mark["args"] == {"put out at": "/p/a.py:10"}


def test_a_limit_on_late_compiles_still_counts_from_the_start_of_each_process(
    tmp_path: Path,
) -> None:
    """It began 1.0 s after its process, 1.2 s after the program."""
    trace = launched(tmp_path / "logs")
    assert not exceeded(trace, Limits(forbid_compile_after_seconds=1.1))
    assert exceeded(trace, Limits(forbid_compile_after_seconds=0.9))
