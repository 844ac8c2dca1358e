"""Minimal examples of findings that were wrong for real programs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trace_samples as samples

import firstlight.trace
from firstlight.trace.findings import load, thresholds
from firstlight.trace.findings.after_start import synchronisation
from firstlight.trace.findings.recompiling import recompiles
from firstlight.trace.findings.shapes import Varying, remedy
from firstlight.trace.findings.start_up import expensive_imports, one_op_compiles
from firstlight.trace.read.model import Difference, Finding, Reason, SourceLine, Span, Trace, Wait
from firstlight.trace.show.verdict import nothing_found

pytestmark = pytest.mark.slow

Traced = Callable[..., Trace]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    def run(program: str, **packages: str) -> Trace:
        """Trace a program as program.py, with packages that look installed."""
        (tmp_path / "site-packages").mkdir()
        for name, text in packages.items():
            (tmp_path / "site-packages" / f"{name}.py").write_text(text)
        (tmp_path / "program.py").write_text(program)
        environment = {
            **os.environ,
            "FIRSTLIGHT_TRACE": str(tmp_path / "logs"),
            "PYTHONPATH": str(tmp_path / "site-packages"),
        }
        command = [sys.executable, tmp_path / "program.py"]
        subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
        return load(tmp_path / "logs")

    return run


@pytest.fixture
def recorded(tmp_path: Path) -> Traced:
    """Record a program in this process, if earlier compiles in it do not matter."""

    def run(program: str) -> Trace:
        path = tmp_path / "program.py"
        path.write_text(program)
        with firstlight.trace.recording() as t:
            runpy.run_path(str(path), run_name="__main__")
        return t.trace

    return run


def of_kind(trace: Trace, kind: str) -> list[Finding]:
    return [finding for finding in trace.findings if finding.kind == kind]


# --- whose line -----------------------------------------------------------------------------------


def test_a_test_runner_does_not_count_as_a_package_that_calls_a_test(
    traced: Traced,
) -> None:
    found = traced(
        "import jax.numpy as jnp\nimport runner\n\n"
        "def case(x=3.0):\n"
        "    y = jnp.sin(x) + jnp.cos(x) + jnp.exp(x) / jnp.sqrt(x) - jnp.tanh(x) * jnp.log(x)\n"
        "    return jnp.arctan(y) + jnp.square(y) + jnp.arange(4)\n\n"
        "runner.main(case)\n",
        variants="import jax\ndef run(case): case()\n",
        runner="import variants\ndef main(case): variants.run(case)\n",
    )
    (one,) = of_kind(found, "one-op-compiles")
    assert one.function == "case"
    assert one.location is not None and one.location.endswith(("program.py:5", "program.py:6"))


def test_two_lines_of_a_package_are_not_one_line_in_a_loop() -> None:
    user = SourceLine(samples.TRAIN, 16, "main")
    lines = [SourceLine("/v/site-packages/flows/loops.py", n, "fit") for n in (157, 173)]
    first = samples.compiled(user_site=user, site=lines[0])
    again = replace(samples.again(2.0, (500, 4)), user_site=user)
    apart = samples.function("batches", first, replace(again, site=lines[1]))
    together = samples.function("batches", first, replace(again, site=lines[0]))
    assert not list(recompiles(samples.trace(apart)))
    assert [f.kind for f in recompiles(samples.trace(together))] == ["shape-recompiles"]


def test_a_wait_inside_a_package_is_not_reported() -> None:
    user = SourceLine(samples.TRAIN, 19, "main")
    site = SourceLine("/v/site-packages/numpyro/hmc.py", 758, "update")

    assert not told_of(Wait(site, user, 1090, 3.0, 1.0, 5.0), rest=2.0)
    (by_user,) = told_of(Wait(user, user, 1090, 3.0, 1.0, 5.0), rest=2.0)
    assert by_user.remedy.startswith("Do not read results in every step at train.py:19")


def told_of(wait: Wait, rest: float) -> list[Finding]:
    """rest: seconds of the program's own work between the first and the last wait."""
    end = wait.first_seconds + rest
    timeline = (Span("rest", 0.0, wait.first_seconds, ""), Span("compile", 0.5, 0.6, ""))
    timeline += (Span("rest", wait.first_seconds, end, ""), Span("wait", end, 9.0, ""))
    process = samples.process(waits=(wait,), timeline=timeline)
    return list(synchronisation(samples.trace(processes=(process,))))


def test_a_wait_costs_at_most_the_work_of_the_program_in_between() -> None:
    """During a wait the device computes: that takes equally long wherever the wait is."""
    line = SourceLine(samples.TRAIN, 19, "main")
    (busy,) = told_of(Wait(line, line, 100, 3.0, 1.0, 5.0), rest=1.0)
    assert busy.seconds == pytest.approx(1.0)
    (short,) = told_of(Wait(line, line, 100, 0.5, 1.0, 5.0), rest=3.5)
    assert short.seconds == pytest.approx(0.5)
    assert not told_of(Wait(line, line, 100, 3.9, 1.0, 5.0), rest=0.1)  # the computation itself


# --- what is a result, and what delays it ---------------------------------------------------------


def test_a_read_by_an_operation_is_not_a_result(recorded: Traced) -> None:
    found = recorded(
        "import jax, jax.numpy as jnp\n"
        "labels = jnp.arange(6.0) * 2\n"
        "for row in labels:\n    pass\n"
        "labels[labels > 3], jnp.unique(labels)\n"
        "print(float(jax.jit(lambda a: a.sum())(labels)))\n"
    )
    site = found.processes[0].first_result_site
    assert site is not None and site.line == 6


def test_a_package_whose_code_was_traced_is_needed(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long JAX's own import takes depends on the machine: here a hundredth of it is expensive.
    monkeypatch.setattr(thresholds, "IMPORT_SHARE_OF_JAX", 0.01)
    slow = "sum(n % 7 for n in range(4_000_000))\n"
    found = traced(
        "import jax, needed, needless\nprint(float(jax.jit(lambda x: needed.twice(x))(1.0)))\n",
        needed=f"{slow}def twice(x): return x * 2\n",
        needless=slow,
    )
    assert [f.function for f in expensive_imports(found)] == ["needless"]


# --- operations outside of jit --------------------------------------------------------------------


def test_one_operation_that_takes_most_of_all_compiling_is_reported() -> None:
    short = samples.function("step", samples.compiled(took=(0.1, 0.1, 0.4)))
    slow = samples.function("svd", samples.compiled("svd", took=(0, 0, 1.8)), library=True)
    (one,) = one_op_compiles(samples.trace(short, slow))
    assert one.title == "svd in main runs outside jit: it is compiled separately."
    assert "one compile instead of" not in one.remedy
    long = samples.function("step", samples.compiled(took=(0.1, 0.1, 9.0)))
    assert not list(one_op_compiles(samples.trace(long, slow)))


def test_iteration_over_an_array_is_reported(recorded: Traced) -> None:
    found = recorded(
        "import jax, jax.numpy as jnp\n"
        "for row in jnp.asarray([[float(n)] for n in range(37)]):\n    pass\n"
    )
    names = {f.name: f for f in found.functions}
    slow = replace(names["unstack"].compiles[0], stage_seconds={"compile": 1.8})
    trace = samples.trace(replace(names["unstack"], compiles=(slow,)))
    (one,) = one_op_compiles(trace)
    assert "A JAX array is iterated over at line 2" in one.remedy


LOOP = """
import jax, jax.numpy as jnp
def solve(rate):
    def body(state, x): return state - rate * x, state
    return jax.lax.scan(body, jnp.zeros(3), jnp.ones((4, 3)))[0]
run = {run}
for rate in (0.1, 0.2, 0.3, 0.4):
    run(rate)
"""


def test_a_loop_outside_jit_with_a_new_body_at_every_call_is_reported(recorded: Traced) -> None:
    found = recorded(LOOP.format(run="solve"))
    (one,) = of_kind(found, "new-function-recompiles")
    assert one.title.startswith("scan at program.py:5 is compiled again 3 times")
    assert one.evidence["recompiles"] == 3


def test_the_same_loop_under_one_jit_is_not_reported(recorded: Traced) -> None:
    assert not of_kind(recorded(LOOP.format(run="jax.jit(solve)")), "new-function-recompiles")


# --- recompiles -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "is_told"),
    [
        *[("dtype", True), ("weak type", True), ("sharding", True), ("context", True)],
        *[("shape", False), ("tree", False)],
    ],
)
def test_an_accidental_recompile_is_reported_at_once_even_from_a_second_line(
    reason: str, is_told: bool
) -> None:
    """Another shape or structure at another line may be intended; it is mentioned anyway."""
    other_line = samples.again(
        2.0, (9, 4), user_site=SourceLine(samples.TRAIN, 80, "evaluate"), recompile_reason=reason
    )
    trace = samples.trace(samples.function("step", samples.compiled(), other_line), findings=())
    assert bool(list(recompiles(trace))) == is_told
    told = "Compiled again, perhaps on purpose: step at /home/alice/secret/train.py:80 (x: f32[8,4]"
    assert told in nothing_found(trace)


def test_jitted_methods_of_new_objects_are_cured_by_one_object() -> None:
    again = samples.compiled(begin=2.0, recompile_reason=Reason.NEW_FUNCTION)
    function = samples.function("LBFGS.update", samples.compiled(), again, again)
    (one,) = recompiles(samples.trace(function))
    assert "Each LBFGS has its own jitted functions: create the object once" in one.remedy


def test_a_compile_with_another_difference_is_not_a_cost_of_a_new_function() -> None:
    new = Difference(Reason.NEW_FUNCTION, None, "object 1", "object 2")
    told = {"recompile_reason": Reason.NEW_FUNCTION, "recompile_differences": (new,)}
    again = samples.compiled(begin=2.0, **told)
    shape = Difference(Reason.SHAPE, "x", "f32[2]", "f32[3]")
    also_shape = replace(again, recompile_differences=(new, shape))
    function = samples.function("vtrace", samples.compiled(), again, also_shape, also_shape)
    (one,) = recompiles(samples.trace(function))
    assert one.seconds == pytest.approx(again.seconds)


def test_shapes_under_vmap_are_not_compared_with_those_outside() -> None:
    under_vmap = {"context": {"transformation": "vmap"}}
    compiles = [
        samples.compiled(signature=replace(samples.signature((2,)))),
        samples.compiled(signature=replace(samples.signature((16, 1)), **under_vmap)),
        replace(
            samples.again(3.0, (2, 1)),
            signature=replace(samples.signature((2, 1)), **under_vmap),
        ),
    ]
    told = remedy(samples.function("check", *compiles), "train.py:40")
    assert told.startswith("Pad dimension 0 of x from 2 to 16")


def test_a_batch_that_came_first_is_what_all_others_are_padded_to() -> None:
    assert Varying(("x",), 0, (2000, 500, 1000)).buckets == (2000,)
    assert Varying(("x",), 0, (500, 1000, 2000)).buckets == (1024, 2048)
