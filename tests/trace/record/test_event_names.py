"""The names of JAX that the trace depends on, compared with the installed JAX.

Where one is gone, the trace says what it cannot tell.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstlight.telemetry.events import CACHE, STAGES
from firstlight.trace import recording, session
from firstlight.trace.findings import load
from firstlight.trace.read.model import Trace
from firstlight.trace.record import calls, program_contents

pytestmark = pytest.mark.slow

START = "import jax, jax.numpy as jnp, numpy as np\n"
#: JAX is imported, so the recorder attaches at once, to a JAX changed before.
RECORD = "import firstlight.trace.startup\n"
WORK = """
def f(x):
    return jnp.sum(jnp.sin(x) @ x.T)
print(jax.jit(f)(np.ones((30, 30), np.float32)))
"""


def traced(folder: Path, source: str, *arguments: str) -> Trace:
    done = subprocess.run(
        [sys.executable, "-c", source, *arguments],
        env={**os.environ, "FIRSTLIGHT_TRACE": ""} | {"WHERE": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return load(folder)


def recorded(before: str = "") -> str:
    """A program whose recorder starts after JAX was changed."""
    start = "import os\nos.environ['FIRSTLIGHT_TRACE'] = os.environ['WHERE']\n"
    return START + before + "\n" + start + RECORD + WORK


def test_stages_are_reported_under_these_names() -> None:
    from jax._src import dispatch

    assert {
        dispatch.JAXPR_TRACE_EVENT: "trace",
        dispatch.JAXPR_TO_MLIR_MODULE_EVENT: "lower",
        dispatch.BACKEND_COMPILE_EVENT: "compile",
    } == STAGES


def test_the_cache_reports_under_these_names() -> None:
    from jax._src import compilation_cache, compiler

    source = Path(compiler.__file__).read_text() + Path(compilation_cache.__file__).read_text()
    assert [name for name in CACHE if name not in source] == []


def test_frames_that_hold_a_call_have_these_names() -> None:
    from jax._src import pjit, stages

    source = Path(pjit.__file__).read_text()
    assert Path(pjit.__file__).name == calls.JIT
    for function, variables in calls._CALLS.items():
        assert f"def {function}(" in source
        assert all(variable in source for variable in variables)
    assert hasattr(stages.Traced, "lower")


def test_tracers_have_these_names() -> None:
    from jax._src import interpreters
    from jax._src.interpreters import ad, batching, partial_eval

    modules = (ad, batching, partial_eval)
    known = {name for module in modules for name in vars(module) if name.endswith("Tracer")}
    # Not in every version: GradTracer, RematTracer.
    assert {"BatchTracer", "JVPTracer", "LinearizeTracer"} <= known & calls._TRANSFORMATIONS.keys()
    assert interpreters


def test_frames_that_hold_a_program_have_these_names() -> None:
    from jax._src.interpreters import pxla

    source = Path(pxla.__file__).read_text()
    for file, function in (program_contents.LOWERING, program_contents.COMPILING):
        assert Path(pxla.__file__).name == file
        assert f"def {function}(" in source
    variables = ("closed_jaxpr", "xla_executable", "host_callbacks")
    assert all(variable in source for variable in variables)


def test_nothing_is_unknown_with_the_installed_jax(tmp_path: Path) -> None:
    trace = traced(tmp_path, recorded())
    (function,) = [f for f in trace.functions if f.name == "f"]
    (one,) = function.compiles
    told: dict[str, Any] = {
        "stages": None not in one.stage_seconds.values(),
        "equations": (one.equations or 0) > 2,
        "constants": one.constant_bytes is not None,
        "size": one.executable_bytes is None or one.executable_bytes > 0,
        "call": one.signature is not None and one.signature.arguments[0].shape == (30, 30),
        "site": one.site is not None,
        "cache": one.cache is not None and one.cache.status == "off",
        "first result": trace.time_to_first_result_seconds is not None,
        "problems": trace.processes[0].problems == (),
        "backend": trace.processes[0].phases_seconds["backend"] > 0,
    }
    assert [name for name, is_told in told.items() if not is_told] == []


RENAMED = "from jax._src import dispatch; dispatch.JAXPR_TRACE_EVENT = '/jax/renamed'"


@pytest.fixture(scope="module")
def without_trace_events(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return traced(tmp_path_factory.mktemp("renamed"), recorded(RENAMED))


def assert_told(trace: Trace, problem: str) -> None:
    (problems,) = [p.problems for p in trace.processes]
    assert any(problem in text for text in problems), problems


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            "import firstlight.trace.record.calls as calls; calls._CALLS.clear()",
            "does not show which calls",
        ),
        (
            "import firstlight.telemetry.events as e; e.STAGES.clear()",
            "JAX reported no compile",
        ),
    ],
    ids=["calls", "all events"],
)
def test_a_trace_reports_what_a_missing_name_makes_unknown(
    tmp_path: Path, change: str, problem: str
) -> None:
    assert_told(traced(tmp_path, recorded(change)), problem)


def test_seconds_of_an_unreported_stage_are_null_not_zero(without_trace_events: Trace) -> None:
    assert_told(without_trace_events, "reported nothing about tracing")
    (function,) = [f for f in without_trace_events.functions if f.name == "f"]
    (one,) = function.compiles
    assert one.stage_seconds["trace"] is None
    assert (one.stage_seconds["compile"] or 0) > 0


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("firstlight.trace.record.program_contents.LOWERING", ("gone", ""), "the equations and"),
        ("firstlight.trace.record.program_contents.COMPILING", ("gone", ""), "the size and call"),
        ("jax._src.array.ArrayImpl._value", None, "and so is the first result"),
        ("jax._src.xla_bridge._init_backend", None, "how this JAX starts them is unknown"),
    ],
    ids=["lowering", "compiling", "waits", "backends"],
)
def test_a_recording_reports_what_a_missing_name_makes_unknown(
    name: str, value: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    monkeypatch.setattr(name, value)
    with recording() as t:
        if "program_contents" in name:
            jax.jit(lambda x: x * 5 + 2)(3.0)
    monkeypatch.undo()
    assert_told(t.trace, problem)


def test_a_stage_ends_in_the_frame_in_which_it_began() -> None:
    import jax

    with recording() as recorded:
        jax.jit(lambda x: x * 3 + 1)(2.0)
        hooks = session._SHARED._hooks
    assert recorded.compile_count == 1
    # Otherwise aborted stages could not be recognised, and would hide later reads.
    assert hooks is not None and hooks._frames_stay


def test_a_failed_compile_is_not_reported_as_a_problem_of_jax() -> None:
    import jax

    with recording() as t, pytest.raises(Exception, match="xla_no_such_option"):
        jax.jit(lambda x: x + 1, compiler_options={"xla_no_such_option": 1})(2.0)
    assert not any("does not show" in problem for problem in t.trace.processes[0].problems)
