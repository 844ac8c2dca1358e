"""Fits that keep all samples positive, and what is said of samples below zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from positive_oracle import lowest_positive, yields_of
from random_models import Likelihood, random_workspace

from firstlight import histfactory as hf

Plain = dict[str, Any]


def one_bin(modifiers: list[Plain], nominal: float, observed: float, settings: Any = ()) -> Plain:
    """A signal with the modifiers, above a background of 162."""
    signal = {"name": "signal", "data": [nominal], "modifiers": modifiers}
    background = {"name": "background", "data": [162.0], "modifiers": []}
    config = {"poi": "mu", "parameters": list(settings)}
    return {
        "version": "1.0.0",
        "channels": [{"name": "c", "samples": [signal, background]}],
        "observations": [{"name": "c", "data": [observed]}],
        "measurements": [{"name": "m", "config": config}],
    }


def histosys(name: str, hi: float, lo: float) -> Plain:
    return {"name": name, "type": "histosys", "data": {"hi_data": [hi], "lo_data": [lo]}}


MU = {"name": "mu", "type": "normfactor", "data": None}
STATERROR = {"name": "stat", "type": "staterror", "data": [4.51]}


@pytest.fixture(scope="module")
def model() -> hf.Model:
    """Its lowest minimum has a signal below zero."""
    return hf.load(one_bin([MU, histosys("sys0", 133.0, 277.0), STATERROR], 211.0, 126.0))


def test_the_lowest_fit_has_no_signal_where_the_lowest_minimum_has_a_negative_one(
    model: hf.Model,
) -> None:
    free = hf.fit(model)
    assert (free.nll, free.parameters["mu"]) == (pytest.approx(5.114044, abs=1e-6), 10.0)
    ((channel, sample, bin_, expected, parameter),) = free.negative_samples
    assert (channel, sample, bin_, parameter) == ("c", "signal", 0, "sys0")
    template = 211.0 - 78.0 * free.parameters["sys0"]  # beyond one
    given = 10.0 * template * free.parameters["stat[0]"]
    assert expected == pytest.approx(given, rel=1e-9) and expected < 0

    positive = hf.fit(model, require_positive=True)
    assert positive.status is hf.Status.CONVERGED and positive.negative_samples == []
    assert positive.nll == pytest.approx(hf.fit(model, fixed={"mu": 0.0}).nll, abs=1e-12)
    assert positive.parameters["mu"] == 0.0


def test_a_fit_held_by_a_template_at_zero_has_the_constraints_uncertainties(
    model: hf.Model,
) -> None:
    found = hf.fit(model, fixed={"mu": 0.5}, require_positive=True)
    assert found.status is hf.Status.CONVERGED
    # Beyond |α| = 1 the template is linear. Where it is zero, there is no signal: only the data
    # without it, and the constraint of sys0, cost anything.
    slope = 211.0 - 133.0
    assert found.parameters["sys0"] == pytest.approx(211.0 / slope, rel=1e-9)
    without = hf.fit(model, fixed={"mu": 0.0}).nll
    assert found.nll == pytest.approx(without + 0.5 * (211.0 / slope) ** 2, abs=1e-9)
    assert found.uncertainties["sys0"] == pytest.approx(0.0, abs=1e-6)
    assert found.uncertainties["stat[0]"] == pytest.approx(4.51 / 211.0, rel=1e-9)


@pytest.mark.parametrize(
    ("seed", "mu"), [(31, None), (57, None), (73, None), (94, None), (134, None), (168, 1.0)]
)
def test_the_lowest_positive_fit_is_that_of_slsqp(seed: int, mu: float | None) -> None:
    workspace = random_workspace(seed)
    model, likelihood = hf.load(workspace), Likelihood(workspace)
    fixed = {} if mu is None else {"mu": mu}
    free, found = hf.fit(model, fixed=fixed), hf.fit(model, fixed=fixed, require_positive=True)
    below = yields_of(likelihood, likelihood.in_order(free.names, free.values)) < -1e-9
    assert len(free.negative_samples) == np.sum(below) > 0
    assert found.status is hf.Status.CONVERGED and found.nll > free.nll
    here = likelihood.in_order(found.names, found.values)
    assert np.min(yields_of(likelihood, here)) > -1e-9
    starts = [here, *likelihood.starts(np.random.default_rng(seed), 3)]
    assert float(likelihood.nll(here)) <= lowest_positive(likelihood, starts, fixed) + 1e-6


@pytest.mark.parametrize("seed", [0, 3, 5, 7])
def test_a_fit_that_is_positive_anyhow_is_the_same_to_the_last_digit(seed: int) -> None:
    model = hf.load(random_workspace(seed))
    free, found = hf.fit(model), hf.fit(model, require_positive=True)
    assert free.negative_samples == []
    assert found.nll == free.nll and np.array_equal(found.values, free.values)
    assert np.array_equal(found.covariance, free.covariance)


@pytest.mark.parametrize("seed", [57, 94])
def test_free_fits_are_never_above_conditional_ones(seed: int) -> None:
    model = hf.load(random_workspace(seed))
    test = hf.discovery(model, require_positive=True)
    assert test.q0 >= 0 and test.free.nll <= test.conditional.nll + 1e-12
    assert test.free.negative_samples == test.conditional.negative_samples == []
    scanned = hf.scan(model, "mu", [0.0, 0.5, 2.0], require_positive=True)
    assert np.all(scanned.twice_delta_nll > -1e-12) and not np.any(scanned.status_code)
    held = hf.fit(model, fixed={"mu": 0.5}, require_positive=True)
    assert scanned.nll[1] == pytest.approx(held.nll, abs=1e-9)


def test_limits_and_impacts_use_positive_fits() -> None:
    model = hf.load(random_workspace(73))
    best = hf.fit(model, require_positive=True)
    limit = hf.upper_limit(model, require_positive=True)
    test = hf.cls(model, [limit.observed], require_positive=True)
    assert test.observed[0] == pytest.approx(0.05, rel=1e-6)
    assert test.muhat[0] == pytest.approx(best.parameters["mu"], abs=1e-6)
    held = hf.fit(model, fixed={"mu": limit.observed}, require_positive=True)
    assert test.q[0] == pytest.approx(2 * (held.nll - best.nll), abs=1e-8)
    assert hf.impacts(model, parameters=["a0"], require_positive=True).best.nll == best.nll


def test_a_fit_with_no_positive_sample_is_impossible(model: hf.Model) -> None:
    for fixed in ({"mu": -0.5}, {"mu": 1.0, "sys0": 3.5}):
        found = hf.fit(model, fixed=fixed, require_positive=True)
        assert found.status is hf.Status.IMPOSSIBLE_START and found.nll == np.inf
        assert "require_positive" in found.status.message


@pytest.mark.parametrize(
    "of",
    [
        lambda m: hf.fit(m, require_positive=True).nll,
        lambda m: hf.discovery(m, require_positive=True).z0,
        lambda m: hf.cls(m, 1.0, require_positive=True).observed,
        lambda m: hf.upper_limit(m, require_positive=True).observed,
    ],
)
def test_transformations_refuse_positive_fits(
    model: hf.Model, of: Callable[[hf.Model], Any]
) -> None:
    for transformed in (jax.jit(of), jax.grad(of)):
        with pytest.raises(hf.ModelError, match="only outside jit, grad and vmap"):
            transformed(model)


def test_the_parameter_behind_a_negative_sample_is_the_lowest_shift_or_factor() -> None:
    shifts = [histosys("a", 190.0, 232.0), histosys("b", 100.0, 322.0)]
    model = hf.load(one_bin([MU, *shifts], 211.0, 126.0))
    held = {"a": 1.5, "b": 2.5, "mu": 1.0}
    (found,) = hf.fit(model, fixed=held).negative_samples
    expected = 211.0 - 1.5 * 21.0 - 2.5 * 111.0
    assert found == ("c", "signal", 0, pytest.approx(expected, rel=1e-12), "b")

    bounds = [{"name": "mu", "bounds": [[-5.0, 5.0]]}]
    model = hf.load(one_bin([MU, *shifts], 211.0, 126.0, bounds))
    (found,) = hf.fit(model, fixed={"a": 0.0, "b": 0.0}).negative_samples
    assert found == ("c", "signal", 0, pytest.approx(126.0 - 162.0, rel=1e-6), "mu")


def test_negative_samples_are_those_of_one_fit(model: hf.Model) -> None:
    with pytest.raises(hf.ModelError, match="negative_samples is available for a single fit"):
        jax.jit(lambda m: hf.fit(m).nll * len(hf.fit(m).negative_samples))(model)
