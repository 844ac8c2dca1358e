"""The HistFactory workload: every library computes the same, and the reference has its own oracles.

pyhf and NextStat may be missing: their tests are skipped then, and say what to install.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstlight.histfactory.programs import compiler_options
from firstlight.measure.case_selection import mark_missing, select
from firstlight.measure.checking import compare
from firstlight.measure.process import Outcome, Report, run_worker
from firstlight.measure.program import load_object
from firstlight.measure.runner import Runner
from firstlight.records import Case, Sample, Settings
from firstlight.workloads.catalog import registered
from firstlight.workloads.programs import histfactory

pytestmark = pytest.mark.slow

BACKENDS, WORKLOADS = registered()
TASKS = [name for name in WORKLOADS if name.startswith("histfactory_")]
BRIEF = Settings(1, 5, 2, 0.1, 1, 0.001, 120.0, None, 0)
SEED = 0


def cases(task: str, size: str) -> list[Case]:
    return [c for c in select(task, WORKLOADS, BACKENDS, None, ["none"]) if c.size == size]


SMALL = [case for task in TASKS for case in cases(task, "complex-8p")]
LIKELIHOODS = [c for c in cases("histfactory_nll_grad", "thu-184p") if c.backend != "pyhf-jax"]


def require(case: Case) -> None:
    (marked,) = mark_missing([case], BACKENDS)
    assert not marked.skipped


@pytest.fixture
def float64(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the worker's environment sets; pyhf sets it too, and for good."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    if "pyhf" in sys.modules:
        sys.modules["pyhf"].set_backend("numpy")
    jax.config.update("jax_enable_x64", before)


# --- every library against the reference ---


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")  # in pyhf
@pytest.mark.parametrize("case", [*SMALL, *LIKELIHOODS], ids=lambda case: str(case.id))
def test_program_agrees_with_the_reference(case: Case) -> None:
    require(case)
    # As the engine compiles; the worker of the tests below compiles as users do.
    options = compiler_options() if case.backend == "jax-jit" else None
    jit = partial(importlib.import_module("jax").jit, compiler_options=options)
    compile = jit if case.compiled else lambda function: function
    step, arguments = load_object(case.program)(compile, SEED, **case.parameters)
    found = step(*arguments)
    outputs = [np.asarray(out) for out in (found if isinstance(found, tuple) else (found,))]
    assert {out.dtype for out in outputs} == {np.dtype(np.float64)}
    assert case.reference is not None
    expected = [np.asarray(out) for out in load_object(case.reference)(SEED, **case.parameters)]
    judgement = compare(outputs, expected, case.tolerance)
    assert judgement["passed"], judgement["reason"]
    if case.backend == "jax-jit":  # no minimiser that stops early: only rounding is left
        assert judgement["error"] < 1e-11


# --- real processes ---


def measured(case: Case) -> Sample:
    """The sample of a timed process, for which this one computes the reference."""
    require(case)
    assert case.reference is not None
    expected = load_object(case.reference)(case.seed, **case.parameters)

    def spawn(job: Report, *arguments: Any) -> Outcome:
        np.savez(job["reference_path"], *expected)
        return run_worker(job, *arguments)

    with Runner([case], BRIEF, lambda _: None, spawn=spawn) as runner:
        sample = runner.take(case, "timed", 0)
    assert (sample.kind, sample.status) == ("timed", "ok"), sample.reason
    return sample


@pytest.mark.parametrize("backend", ["jax-jit", "pyhf-jax"])
def test_compilation_of_a_fit_is_measured_even_inside_pyhf(backend: str) -> None:
    (case,) = (c for c in cases("histfactory_fit", "complex-8p") if c.backend == backend)
    sample = measured(case)
    assert sample.cold is not None and sample.correctness is not None
    phases = sample.cold.phases_seconds
    assert all(phases[name] for name in ("import", "setup", "trace", "lower", "compile"))
    assert sample.counts["compiles"] and sample.counts["warm_compiles"] == 0
    assert sample.correctness.max_relative_error is not None


def test_nextstat_has_no_compile_phases_and_its_distance_to_the_minimum_is_reported() -> None:
    (case,) = (c for c in cases("histfactory_fit", "complex-8p") if c.backend == "nextstat")
    sample = measured(case)
    assert sample.cold is not None and sample.correctness is not None
    phases = sample.cold.phases_seconds
    assert phases["import"] and phases["first_execute"]
    assert [phases[name] for name in ("trace", "lower", "compile")] == [None] * 3
    assert sample.correctness.max_relative_error


@pytest.mark.parametrize("module", ["pyhf", "nextstat"])
def test_a_missing_peer_is_skipped_and_the_message_names_what_to_install(module: str) -> None:
    marked = mark_missing(SMALL, BACKENDS, lambda name: name != module)
    skipped = {case.backend: case.skipped for case in marked if case.skipped}
    assert set(skipped) == {b for b in (c.backend for c in SMALL) if b.startswith(module)}
    assert set(skipped.values()) == {f"{module} is not installed (pip install 'firstlight[peers]')"}


# --- what the harness relies on ---


def test_importing_the_inputs_imports_nothing_else() -> None:
    tree = ast.parse(Path(histfactory.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["from __future__ import annotations"]
    assert histfactory.TYPE_CHECKING is False


@pytest.mark.parametrize(
    ("module", "function"), [("nextstat", "build_fit"), ("pyhf", "build_fit_numpy")]
)
def test_a_peer_that_does_not_need_jax_does_not_import_it(module: str, function: str) -> None:
    code = (
        f"from firstlight.workloads.programs import histfactory_{module} as program; import sys\n"
        f"step, arguments = program.{function}(lambda f: f, 0, 'complex-8p')\n"
        "step(*arguments); assert not {'jax', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("task", TASKS)
def test_a_size_that_some_library_does_not_run_has_a_note(task: str) -> None:
    for size in WORKLOADS[task].sizes.values():
        left_out = set(WORKLOADS[task].programs) - set(size.frameworks or ())
        assert bool(size.note) == bool(left_out)


# --- inputs ---


def test_the_point_is_the_same_in_any_order_and_on_both_sides_of_the_interpolation() -> None:
    names = [f"alpha{index:03d}" for index in range(100)] + ["mu", "lumi"]
    values = histfactory.point(SEED, names)
    assert values == histfactory.point(SEED, names[::-1])
    inside = [abs(value) < 1 for name, value in values.items() if name.startswith("alpha")]
    assert any(inside) and not all(inside)


def test_toys_are_counts_about_the_nominal_expectation() -> None:
    content = histfactory.workspace(SEED, "complex-8p")
    toys = histfactory.toy_counts(SEED, content, 2000)
    for channel in content["channels"]:
        drawn = toys[channel["name"]]
        mean = np.sum([sample["data"] for sample in channel["samples"]], axis=0)
        assert np.array_equal(drawn, np.round(drawn))
        # Four standard errors: one seed in four thousand would fail, and the seed is fixed.
        assert np.all(np.abs(drawn.mean(0) - mean) < 4 * np.sqrt(mean / len(drawn)))


# --- oracles of the reference ---


def likelihood_and_point(preset: str) -> tuple[Any, np.ndarray]:
    likelihood, theta = histfactory._likelihood_at(SEED, preset)
    return likelihood, theta


@pytest.mark.parametrize("mu", [1.1, 0.0])
def test_reference_gradient_matches_central_differences(mu: float) -> None:
    likelihood, theta = likelihood_and_point("complex-8p")
    theta[likelihood.names.index("mu")] = mu
    gradient = likelihood.gradient(theta, likelihood.observed)
    h = 1e-5
    for index, slope in enumerate(gradient):
        shift = np.eye(len(theta))[index] * h
        up = likelihood.nll(theta + shift, likelihood.observed)
        down = likelihood.nll(theta - shift, likelihood.observed)
        # Rounding 1e-14 / h, truncation h² times a third derivative of up to 1e3.
        assert (up - down) / (2 * h) == pytest.approx(slope, abs=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in pyhf's use of jsonschema
def test_reference_likelihood_is_that_of_pyhf_with_184_parameters() -> None:
    import pyhf

    likelihood, theta = likelihood_and_point("thu-184p")
    workspace = pyhf.Workspace(histfactory.workspace(SEED, "thu-184p"))
    model = workspace.model(validate=False)  # the workspace has been validated
    assert tuple(model.config.par_names) == likelihood.names
    expected = -model.logpdf(theta, workspace.data(model))[0]
    assert likelihood.nll(theta, likelihood.observed) == pytest.approx(expected, rel=1e-13)


def test_reference_minimum_is_that_of_scipy() -> None:
    import scipy.optimize as optimise

    likelihood, _ = likelihood_and_point("complex-8p")
    lowest = likelihood.minimum(likelihood.observed)
    # Away from zero yields, whose likelihood is infinite: scipy takes differences of it.
    lower = np.where(likelihood._lower == 0, 0.05, likelihood._lower)
    found = optimise.minimize(
        lambda theta: likelihood.nll(theta, likelihood.observed),
        likelihood._initial,
        bounds=list(zip(lower, likelihood._upper, strict=True)),
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    assert lowest <= found.fun <= lowest + 1e-9


def test_reference_minimum_stays_within_bounds() -> None:
    """Without an excess μ̂ is 0, and the free and the conditional minimum are the same."""
    likelihood, _ = likelihood_and_point("complex-8p")
    assert likelihood.channels == ["CR", "SR"]
    few = np.array([1.0, 1.0, 0.7, 0.7]) * likelihood.observed
    without_signal = likelihood.minimum(few, held={"mu": 0.0})
    assert likelihood.minimum(few) == pytest.approx(without_signal, abs=1e-12)
