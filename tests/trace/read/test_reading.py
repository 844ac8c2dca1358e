"""Logs can end anywhere, add up to the wall time, and agree with JAX's counts."""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trace_logs import Log, whole_log

from firstlight.present.quantities import duration
from firstlight.trace.findings import load
from firstlight.trace.read.log_events import TraceLogError
from firstlight.trace.read.model import Process, Trace
from firstlight.trace.read.phases import sums
from firstlight.trace.read.timeline import Interval, SummedWait, parts, spans
from firstlight.trace.wording import sentence_of, why_again

pytestmark = pytest.mark.slow


def only(trace: Trace) -> Process:
    (process,) = trace.processes
    return process


# --- accounting -----------------------------------------------------------------------------------


def test_phases_are_exclusive_and_add_up_to_the_wall_time(tmp_path: Path) -> None:
    process = only(whole_log().read(tmp_path))
    told = {kind: round(1000 * s, 6) for kind, s in process.phases_seconds.items()}
    assert told == {
        "interpreter": 50,
        "import": 140,
        "backend": 20,
        "trace": 50,
        "lower": 45,  # 55 and 10, minus the backend that started inside
        "compile": 180,
        "wait": 60,
        "rest": 455,
        "exit": 0,
    }
    assert process.wall_seconds == pytest.approx(1.0)
    assert sum(process.phases_seconds.values()) == pytest.approx(1.0)


def test_spans_follow_each_other_without_gap_or_overlap(tmp_path: Path) -> None:
    timeline = only(whole_log().read(tmp_path)).timeline
    assert timeline[0].begin_seconds == 0
    for one, after in itertools.pairwise(timeline):
        assert one.end_seconds == pytest.approx(after.begin_seconds)
        assert one.end_seconds > one.begin_seconds
    assert timeline[-1].end_seconds == pytest.approx(1.0)


def test_parts_of_random_intervals_add_up_and_the_innermost_counts() -> None:
    source = random.Random(6)
    for _ in range(200):
        nested = _random_intervals(source, 0, 1000, depth=3)
        cut = parts(nested, 0, 1000)
        assert sum(p.end_ns - p.begin_ns for p in cut) == 1000
        for moment in source.sample(range(1000), 50):
            around = [i for i in nested if i.begin_ns <= moment < i.end_ns]
            innermost = min(around, key=lambda i: i.end_ns - i.begin_ns, default=None)
            (part,) = [p for p in cut if p.begin_ns <= moment < p.end_ns]
            assert part.interval == innermost


def _random_intervals(source: random.Random, low: int, high: int, depth: int) -> list[Interval]:
    if depth == 0 or high - low < 10:
        return []
    begin, end = sorted(source.sample(range(low, high), 2))
    if end == begin:
        return []
    inner = _random_intervals(source, begin + 1, end - 1, depth - 1)
    beside = _random_intervals(source, end, high, depth - 1)
    return [Interval("import", begin, end, f"{begin}-{end}"), *inner, *beside]


def test_summed_waits_take_at_most_their_share_of_the_rest() -> None:
    pieces = parts([Interval("compile", 400, 600, "f")], 0, 1000)
    timeline = spans(pieces, [SummedWait(300, 800, 90, "a.py:1")], 0)
    assert 1e9 * sums(timeline)["wait"] == pytest.approx(90)
    too_long = spans(pieces, [SummedWait(300, 800, 10_000, "a.py:1")], 0)
    assert 1e9 * sums(too_long)["wait"] == pytest.approx(300)  # all of the rest
    assert sum(sums(too_long).values()) == pytest.approx(1000e-9)


# --- what is told ---------------------------------------------------------------------------------


def test_calls_and_stages_become_compiles_of_a_function(tmp_path: Path) -> None:
    trace = whole_log().read(tmp_path)
    (function,) = trace.functions
    first, second = function.compiles
    assert (function.name, function.place.line) == ("f", 3)
    assert first.stage_seconds == pytest.approx({"trace": 0.04, "lower": 0.035, "compile": 0.1})
    assert (first.equations, first.constant_bytes, first.executable_bytes) == (5, 8, 77)
    assert (first.cache.status, first.user_site.line) == ("off", 9)
    assert (second.recompile_reason, why_again(second)) == ("shape", "x: f32[3] → f32[4]")
    assert (trace.compile_count, trace.recompiles) == (2, 1)
    assert trace.time_to_first_result_seconds == pytest.approx(0.51)


def test_imports_are_summed_by_package_without_counting_twice(tmp_path: Path) -> None:
    log = Log().imports(
        ("outer", 100, 100, 20),
        ("inner", 110, 50, 40),
        ("outer.b", 115, 10, 10),
        ("z", 165, 30, 30),
    )
    packages = {p.name: p for p in only(log.end(300).read(tmp_path)).imports}
    assert packages["outer"].seconds == pytest.approx(0.03)
    assert packages["outer"].with_others_seconds == pytest.approx(0.1)
    assert packages["inner"].with_others_seconds == pytest.approx(0.05)
    assert packages["inner"].imported_by == "outer"


def test_jax_is_not_a_cost_of_the_package_that_imports_it_first(tmp_path: Path) -> None:
    log = Log().imports(
        ("solver", 100, 500, 50),
        ("jax", 120, 400, 300),
        ("numpy", 130, 100, 100),
        ("tables", 530, 50, 50),
    )
    packages = {p.name: p for p in only(log.end(700).read(tmp_path)).imports}
    assert packages["solver"].with_others_seconds == pytest.approx(0.5)
    assert packages["solver"].beyond_jax_seconds == pytest.approx(0.1)
    assert packages["tables"].imported_by == "solver"


def test_scipy_is_a_cost_of_the_package_that_imports_it(tmp_path: Path) -> None:
    """JAX requires SciPy but does not import it: without `fits` nothing would."""
    log = Log().imports(
        ("fits", 100, 900, 100), ("scipy.stats", 150, 800, 600), ("numpy", 160, 200, 200)
    )
    trace = log.imports(("jax", 1100, 400, 400)).end(2000).read(tmp_path / "logs")
    beyond = {p.name: p.beyond_jax_seconds for p in only(trace).imports}
    assert beyond["fits"] == pytest.approx(0.7)  # without NumPy, which JAX imports
    assert "scipy" not in _modules_of("import jax, jax.numpy")


def _modules_of(statement: str) -> set[str]:
    """The oracle: the packages that an untraced Python imports."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_the_recorder_itself_is_not_among_the_imports(tmp_path: Path) -> None:
    log = Log().imports(("firstlight.trace.record.calls", 100, 5, 5)).imports(("json", 120, 5, 5))
    assert [p.name for p in only(log.end(700).read(tmp_path)).imports] == ["json"]


def test_an_early_kill_is_not_reported_as_a_problem_of_jax(tmp_path: Path) -> None:
    log = Log().jax().call(1).stage("trace", 1, 300, 310)
    assert only(log.read(tmp_path)).problems == ()


def test_a_repeated_stage_in_a_call_is_another_program(tmp_path: Path) -> None:
    log = Log().jax().call(1)
    for begin in (100, 200):
        log.stage("lower", 1, begin, begin + 10).stage("compile", 1, begin + 10, begin + 50)
    (function,) = log.end(300).read(tmp_path).functions
    assert [c.compiled for c in function.compiles] == [True, True]


def test_unknown_events_are_ignored(tmp_path: Path) -> None:
    plain = whole_log().read(tmp_path / "a")
    log = whole_log()
    log.event("of_the_future", what=[1, 2])
    assert log.read(tmp_path / "b") == plain


def test_a_newer_log_is_refused_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(TraceLogError, match=r"newer Firstlight.*Update"):
        Log(version=2).read(tmp_path)


def test_a_folder_without_logs_is_refused_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(TraceLogError, match="no trace here"):
        load(tmp_path)
    with pytest.raises(TraceLogError, match="no such folder"):
        load(tmp_path / "none")
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(TraceLogError, match=r"is a file\. Name the folder"):
        load(tmp_path / "a.jsonl")


# --- logs that end early --------------------------------------------------------------------------


def test_a_log_can_be_read_wherever_it_was_cut(tmp_path: Path) -> None:
    text = whole_log().write(tmp_path / "whole").joinpath("100.jsonl").read_text()
    head = text.index("\n")
    folder = tmp_path / "cut"
    folder.mkdir()
    for length in range(head, len(text), 7):
        (folder / "100.jsonl").write_text(text[:length])
        process = only(load(folder))
        total = sum(process.phases_seconds.values())
        assert process.wall_seconds is None or total == pytest.approx(process.wall_seconds)
        assert total <= 1.0 + 1e-9


def test_a_log_cut_within_its_first_event_is_refused_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"event":"process","sch')
    with pytest.raises(TraceLogError, match="no event"):
        load(tmp_path)


def test_a_compile_that_never_ended_is_named_and_counts_until_the_last_event(
    tmp_path: Path,
) -> None:
    log = Log().jax().call(1).stage("trace", 1, 300, 310).stage("lower", 1, 310, 320)
    log.begin(1, 320).first_result(900)
    process = only(log.read(tmp_path))
    assert (process.unfinished, process.wall_seconds) == ("jit(f)", None)
    assert process.phases_seconds["compile"] == pytest.approx(0.58)


def test_a_process_that_replaced_itself_is_two(tmp_path: Path) -> None:
    first, second = Log(started=0), Log(started=2000)
    first.lines += second.end(100).lines
    assert [p.wall_seconds for p in first.read(tmp_path).processes] == [None, 0.1]


# --- several processes ----------------------------------------------------------------------------


def test_processes_are_merged_and_each_has_its_own_recompiles(tmp_path: Path) -> None:
    for number in range(2):
        log = Log(pid=100 + number, started=1000 + 10 * number, rank=str(number)).jax().call(1)
        log.stage("compile", 1, 300, 400).first_result(450)
        log.end(500).write(tmp_path)
    Log(pid=300, started=900).end(1000).write(tmp_path)  # starts them, and has no JAX
    trace = load(tmp_path)
    assert [(p.pid, p.rank, p.jax_version) for p in trace.processes] == [
        (300, None, None),
        (100, "0", "0.10.2"),
        (101, "1", "0.10.2"),
    ]
    (function,) = trace.functions
    assert [(c.process, c.recompile_reason) for c in function.compiles] == [(1, None), (2, None)]
    # From the start of the first process to the first result of any.
    assert trace.time_to_first_result_seconds == pytest.approx(0.55)


def test_a_fork_has_the_jax_of_its_parent(tmp_path: Path) -> None:
    Log(pid=1).jax().end(900).write(tmp_path)
    Log(pid=2, parent=1, started_ns=None, whole=False).write(tmp_path)
    assert [p.jax_version for p in load(tmp_path).processes] == ["0.10.2", "0.10.2"]


# --- real programs --------------------------------------------------------------------------------

Tracing = Callable[..., "subprocess.CompletedProcess[str]"]


def run_traced(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import firstlight.trace.startup\n" + source],
        env={**os.environ, "FIRSTLIGHT_TRACE": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture
def traced(tmp_path: Path) -> Tracing:
    return functools.partial(run_traced, tmp_path)


MIXED = """
import sys, threading
import jax, jax.numpy as jnp, numpy as np
counted = [0]
def count(name, _, **__):
    counted[0] += name == "/jax/core/compile/backend_compile_duration"
jax.monitoring.register_event_duration_secs_listener(count)
table = jnp.arange(5.0)

@jax.jit
def inner(x):
    return jnp.sin(x) * 2

@jax.jit
def outer(x):
    with jax.ensure_compile_time_eval():
        weights = jnp.cumsum(jnp.ones(7))
    return inner(x).sum() + table.sum() + weights.sum()

outer(np.ones(3, np.float32)).block_until_ready()
one, other = (outer.lower(np.ones(n, np.float32)) for n in (4, 6))
one.compile(), other.compile()
jax.vmap(inner)(np.ones((3, 3), np.float32))
jax.grad(lambda x: inner(x).sum())(np.ones(3, np.float32))
jax.eval_shape(inner, np.ones(9, np.float32))
thread = threading.Thread(target=lambda: inner(np.ones(11, np.float32)))
thread.start(), thread.join()
jax.lax.scan(lambda c, x: (c + x, x), 0.0, np.arange(4.0))
print(counted[0])
"""


@pytest.fixture(scope="module")
def mixed(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[subprocess.CompletedProcess[str], Trace]:
    folder = tmp_path_factory.mktemp("mixed")
    done = run_traced(folder, MIXED, JAX_LOG_COMPILES="1")
    assert done.returncode == 0, done.stderr
    return done, load(folder)


def test_compiles_are_as_many_as_jax_counts_and_logs(mixed: Any) -> None:
    done, trace = mixed
    assert trace.compile_count == int(done.stdout) > 10
    assert trace.compile_count == done.stderr.count("Finished XLA compilation of")
    assert only(trace).problems == ()


def test_nested_and_lowered_programs_belong_to_their_calls(mixed: Any) -> None:
    functions = {f.name: f for f in mixed[1].functions}
    outer, inner = functions["outer"], functions["inner"]
    assert [c.signature.arguments[0].shape for c in outer.compiles] == [(3,), (4,), (6,)]
    assert all(None not in c.stage_seconds.values() for c in outer.compiles)
    contexts = [c.signature.context["transformation"] for c in inner.compiles if c.compiled]
    assert contexts == ["vmap", "grad", "the backward pass of grad", None]
    assert inner.compiles[-1].thread != outer.compiles[0].thread


def test_the_first_result_is_a_read_of_the_program(traced: Tracing, tmp_path: Path) -> None:
    done = traced("""
import jax, jax.numpy as jnp, numpy as np
table = jnp.ones(5)                    # JAX reads it to make a constant: not a result
total = jax.jit(lambda x: (x + table).sum())(np.ones(5, np.float32))
print(total)
""")
    assert done.returncode == 0, done.stderr
    process = only(load(tmp_path))
    assert process.first_result_site.line == 6
    assert sum(w.count for w in process.waits) + process.short_waits == 1


def test_findings_say_which_part_came_before_the_first_result(
    traced: Tracing, tmp_path: Path
) -> None:
    done = traced("""
import jax, jax.numpy as jnp, numpy as np
@jax.jit
def f(x):
    for _ in range(200):
        x = jnp.sin(x) * 2
    return x
for n in (3, 4):
    f(np.ones(n, np.float32)).block_until_ready()
""")
    assert done.returncode == 0, done.stderr
    trace = load(tmp_path)
    ((early, late),) = [f.compiles for f in trace.functions if f.name == "f"]
    assert (early.before_first_result, late.before_first_result) == (True, False)
    first = trace.time_to_first_result_seconds
    assert first is not None
    assert early.end_seconds < first < late.begin_seconds
    found = {f.kind: f for f in trace.findings}
    loop, again = found["unrolled-loop"], found["shape-recompiles"]
    assert again.before_first_result_seconds == 0 < again.seconds
    assert sentence_of(again) == f"{again.title} All of that is after the first result."
    assert loop.before_first_result_seconds is not None
    share = loop.before_first_result_seconds / loop.seconds
    assert share == pytest.approx(early.seconds / (early.seconds + late.seconds))
    assert f"Of that, {duration(loop.before_first_result_seconds)} are before" in sentence_of(loop)


def test_after_a_kill_the_log_says_what_was_being_compiled(traced: Tracing, tmp_path: Path) -> None:
    done = traced("""
import jax, os, signal
def kill(name, value, **about):
    if about.get("fun_name") == "jit(deadly)" and "backend_compile" in name:
        os.kill(os.getpid(), signal.SIGKILL)
jax.monitoring.register_scalar_listener(kill)
def deadly(x):
    return x + 1
jax.jit(deadly)(1.0)
""")
    assert done.returncode == -signal.SIGKILL
    process = only(load(tmp_path))
    assert process.unfinished == "jit(deadly)"
    assert process.wall_seconds is None


def test_every_process_of_a_program_is_in_the_trace(traced: Tracing, tmp_path: Path) -> None:
    done = traced("""
import os, subprocess, sys
import jax, numpy as np
print(jax.jit(lambda x: x + 1)(np.float32(1)))
child = "import firstlight.trace.startup; import json"
subprocess.run([sys.executable, "-c", child], check=True)
""")
    assert done.returncode == 0, done.stderr
    main, child = load(tmp_path).processes
    assert (main.jax_version is None, child.jax_version) == (False, None)
    assert child.first_result_seconds is None
