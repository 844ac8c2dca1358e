"""Training on significance: both frameworks agree with a reference that has its own oracles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from firstlight.histfactory.programs import compiler_options
from firstlight.measure.case_selection import select
from firstlight.measure.checking import compare
from firstlight.measure.program import load_object
from firstlight.records import Case
from firstlight.workloads.catalog import registered
from firstlight.workloads.programs import significance

pytestmark = pytest.mark.slow

BACKENDS, WORKLOADS = registered()
TASKS = ("nll_signal_grad", "profiled_q0", "significance_train_20")
SMALL = [
    case
    for task in TASKS
    for case in select(task, WORKLOADS, BACKENDS, None, ["none"])
    if case.size.startswith("complex-8p")
]
PRESET = "complex-8p"
SEED = 0


@pytest.fixture
def float64() -> Iterator[None]:
    """What the worker's environment sets."""
    with jax.enable_x64(True):
        yield


def test_the_standard_suite_has_both_sizes_and_both_frameworks() -> None:
    ids = {str(case.id) for case in select("standard", WORKLOADS, BACKENDS, None, ["none"])}
    for size in ("complex-8p", "thu-184p"):
        for backend in ("jax-jit", "torch-jax"):
            assert f"profiled_q0[{size}]/{backend}/none" in ids
            for part in ("forward", "backward", "step"):
                assert f"significance_train_20[{size}-{part}]/{backend}/none" in ids


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", SMALL, ids=lambda case: str(case.id))
def test_program_agrees_with_the_reference(case: Case) -> None:
    # With the options of the engine, which compiles in half of the time.
    jit = partial(jax.jit, compiler_options=compiler_options())
    compile: Any = jit if case.backend == "jax-jit" else lambda function: function
    step, arguments = load_object(case.program)(compile, SEED, **case.parameters)
    found = step(*arguments)
    outputs = [np.asarray(out) for out in (found if isinstance(found, tuple) else (found,))]
    assert case.reference is not None
    expected = [np.asarray(out) for out in load_object(case.reference)(SEED, **case.parameters)]
    judgement = compare(outputs, expected, case.tolerance)
    assert judgement["passed"], judgement["reason"]
    assert judgement["error"] < 1e-11


@pytest.mark.parametrize("preset", ["complex-8p", "thu-184p"])
def test_derivative_of_the_reference_likelihood_matches_differences(preset: str) -> None:
    likelihood, cells, yields = significance._likelihood(SEED, preset)
    _, slope = significance.reference_nll_signal_grad(SEED, preset)
    counts = likelihood.observed

    def nll(i: int, h: float) -> float:
        moved = yields.copy()
        moved[i] += h
        return likelihood.with_yields(cells, moved).nll(likelihood.initial, counts)

    for i in range(0, len(cells), 7):
        h = 1e-3 * yields[i]
        difference = (nll(i, h) - nll(i, -h)) / (2 * h)
        assert difference == pytest.approx(slope[i], rel=1e-6, abs=1e-8)


def test_derivative_of_the_reference_q0_matches_refits() -> None:
    likelihood, cells, yields = significance._likelihood(SEED, PRESET)
    value, slope = significance.reference_profiled_q0(SEED, PRESET)
    counts = likelihood.observed

    def q0(i: int, h: float) -> float:
        moved = yields.copy()
        moved[i] += h
        changed = likelihood.with_yields(cells, moved)
        return 2 * (changed.minimum(counts, {"mu": 0.0}) - changed.minimum(counts))

    assert q0(0, 0.0) == pytest.approx(value, rel=1e-9)
    for i in range(len(cells)):
        h = 1e-2 * yields[i]
        difference = (q0(i, h) - q0(i, -h)) / (2 * h)
        assert difference == pytest.approx(slope[i], rel=1e-3, abs=1e-6)


def test_gradient_of_the_reference_loss_matches_differences() -> None:
    likelihood, cells, yields = significance._likelihood(SEED, PRESET)
    x, weights = significance.network(SEED)

    def loss(weights: list[Any]) -> tuple[float, list[Any]]:
        return significance._loss(likelihood, cells, float(yields.sum()), x, weights)

    _, gradients = loss(weights)
    for layer, place in ((0, (1, 3)), (1, (2,)), (2, (5, 0)), (3, (0,))):
        values = []
        for h in (1e-4, -1e-4):
            moved = [w.copy() for w in weights]
            moved[layer][place] += h
            values.append(loss(moved)[0])
        difference = (values[0] - values[1]) / 2e-4
        assert difference == pytest.approx(gradients[layer][place], rel=1e-5, abs=1e-9)


def test_replacing_yields_does_not_change_varied_templates() -> None:
    likelihood, cells, yields = significance._likelihood(SEED, "thu-184p")
    other = likelihood.with_yields(cells, 2 * yields)
    for sign, shift in ((1, "_up"), (-1, "_down")):
        before, after = (getattr(one, shift)[:, cells] for one in (likelihood, other))
        varied = before != 0
        assert varied.any()
        template = yields + sign * before
        np.testing.assert_allclose((2 * yields + sign * after)[varied], template[varied], 1e-12)
    theta = likelihood.initial
    assert not np.allclose(other.expected(theta), likelihood.expected(theta))
