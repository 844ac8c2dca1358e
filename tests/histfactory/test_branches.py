"""Claims about likelihoods with several minima: the lowest is found, no limit is too strong."""

from __future__ import annotations

import math
from typing import Any

import jax
import mpmath
import numpy as np
import pytest
from bimodal import COUPLED, COUPLED_DATA, Folded, family
from scipy import stats

from firstlight import histfactory as hf
from firstlight.histfactory import device_fits, engine, lanes, programs, synthetic
from firstlight.histfactory.branches import lowest
from firstlight.histfactory.fitting import problem_of
from firstlight.histfactory.internal_order import data_of, prepared
from firstlight.histfactory.layout import Sizes
from firstlight.histfactory.newton import search
from firstlight.histfactory.precision import float64_scope

pytestmark = pytest.mark.slow

SIZES = Sizes(slots=2, bins=4, channels=1, alphas=3, factors=1, shapes=3, rates=0)


def load(model: Folded) -> hf.Model:
    return hf.load(model.workspace, sizes=SIZES)


def height(model: Folded, parameters: dict[str, float], data: Any, aux: Any = 0.0) -> float:
    """The independent likelihood at the end of a fit."""
    alphas = [parameters[f"a{k}"] for k in range(len(model.up))]
    return float(model.nll(parameters["mu"], alphas, data, aux))


def drawn(model: Folded, rng: np.random.Generator) -> np.ndarray:
    truth = rng.normal(size=len(model.up))
    expected = model.expected(rng.uniform(0, 2), truth)
    return rng.poisson(np.maximum(expected, 0.5)).astype(float)


# --- limits ---------------------------------------------------------------------------------------


class BruteForce:
    """Asymptotic CLs (q̃) from grids over the one α of a model, Eqs. 64-66 of arXiv:1007.1727."""

    def __init__(self, model: Folded, data: np.ndarray) -> None:
        self.model, self.data = model, data
        self.lowest, alpha = model.lowest(data, 0.0)
        self.muhat = float(model.best_mu(alpha, data))
        _, self.alpha = model.lowest(data, 0.0, 0.0)
        self.asimov = model.expected(0.0, self.alpha)
        self.asimov_lowest = float(model.nll(0.0, self.alpha, self.asimov, self.alpha))

    def q_asimov(self, mu: float) -> float:
        return 2 * (self.model.lowest(self.asimov, self.alpha, mu)[0] - self.asimov_lowest)

    def cls(self, mu: float) -> float:
        at_mu = self.model.lowest(self.data, 0.0, mu)[0]
        q = 2 * (at_mu - self.lowest) if self.muhat <= mu else 0.0
        q, q_asimov = max(q, 0.0), self.q_asimov(mu)
        root = math.sqrt(q_asimov)
        inside = math.sqrt(q) - root
        distance = (q - q_asimov) / (2 * root) if q > q_asimov else inside
        return float(stats.norm.sf(distance + root) / stats.norm.sf(distance))


@pytest.mark.parametrize("seed", range(4))
def test_limits_of_bimodal_models_are_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = family(seed, 1, alphas=1, strength=0.3)[0] if seed else COUPLED
    data = drawn(model, rng) if seed else COUPLED_DATA
    truth = BruteForce(model, data)
    limit = hf.upper_limit(load(model), data=data)
    assert limit.converged
    assert truth.cls(limit.observed) == pytest.approx(0.05, rel=1e-6)
    at_median = 2 * stats.norm.sf(math.sqrt(truth.q_asimov(limit.expected[2])))
    assert at_median == pytest.approx(0.05, rel=1e-6)


def test_the_test_statistic_of_the_asimov_data_matches_50_digits() -> None:
    """Both minima at μ = 1 by mpmath; the one that is near the best fit is the higher one."""
    mpmath.mp.dps = 50
    model = load(COUPLED)
    null = hf.fit(model, COUPLED_DATA, fixed={"mu": 0.0})
    alpha_0 = mpmath.mpf(null.parameters["a0"])
    signal, background, up, down = (
        [mpmath.mpf(float(x)) for x in row]
        for row in (COUPLED.signal, COUPLED.background, COUPLED.up[0], COUPLED.down[0])
    )

    def expected(mu: Any, a: Any) -> list[Any]:
        poly = 3 * a**6 - 10 * a**4 + 15 * a**2
        inside = [a * (u - d) / 2 + (u + d) / 16 * poly for u, d in zip(up, down, strict=True)]
        beyond = [a * u if a > 0 else -a * d for u, d in zip(up, down, strict=True)]
        shifts = inside if abs(a) < 1 else beyond
        return [b + mu * s + x for b, s, x in zip(background, signal, shifts, strict=True)]

    data = expected(0, alpha_0)

    def nll(a: Any) -> Any:
        nu = expected(1, a)
        terms = [v - n - n * mpmath.log(v / n) for v, n in zip(nu, data, strict=True)]
        return mpmath.fsum(terms) + (a - alpha_0) ** 2 / 2

    minima = [mpmath.findroot(lambda a: mpmath.diff(nll, a), start) for start in (-0.8, 0.8)]
    low, high = sorted(nll(a) for a in minima)
    assert high - low > 0.1
    found = hf.cls(model, 1.0, COUPLED_DATA)
    assert found.q_asimov == pytest.approx(float(2 * low), rel=1e-10)
    assert found.branches == 2


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.06, 0.3])
def test_no_fit_ends_above_the_lowest_of_a_grid(strength: float) -> None:
    rng = np.random.default_rng(5)
    several = 0
    for model in family(7, 8, alphas=3, strength=strength):
        loaded, data = load(model), drawn(model, rng)
        for mu in (None, 1.0):
            found = hf.fit(loaded, data, fixed=None if mu is None else {"mu": mu})
            lowest, _ = model.lowest(data, 0.0, mu)
            assert found.converged
            assert height(model, found.parameters, data) <= lowest + 1e-9
            several += found.branches > 1
    assert several > 4  # or the family would prove nothing


def test_the_statistic_of_discovery_is_that_of_the_lowest_minima() -> None:
    rng = np.random.default_rng(8)
    for model in family(9, 6, alphas=2, strength=0.3):
        data = drawn(model, rng)
        found = hf.discovery(load(model), data)
        difference = model.lowest(data, 0.0, 0.0)[0] - model.lowest(data, 0.0)[0]
        assert found.q0 == pytest.approx(2 * difference, abs=1e-9)


def test_stacked_discoveries_report_the_number_of_minima_of_each() -> None:
    """As `vmap` gives them: every leaf with a leading axis."""
    loaded = load(COUPLED)
    parts = [hf.discovery(loaded, data) for data in (COUPLED_DATA, COUPLED.background)]
    many = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
    assert many.branches.tolist() == [part.branches for part in parts] == [2, 1]
    assert many.converged.tolist() == [True, True]


def test_scans_and_impacts_follow_the_lower_branch() -> None:
    loaded = load(COUPLED)
    scan = hf.scan(loaded, "mu", values=[0.0, 0.5, 1.0, 1.5, 2.0], data=COUPLED_DATA)
    heights = [COUPLED.lowest(COUPLED_DATA, 0.0, mu)[0] for mu in scan.values]
    np.testing.assert_allclose(np.diff(scan.nll), np.diff(heights), atol=1e-9)
    assert max(scan.branches) == 2
    ranked = hf.impacts(loaded, COUPLED_DATA)
    moved = ranked.values[0] - ranked.uncertainties[0]
    held = hf.fit(loaded, COUPLED_DATA, fixed={"a0": moved})
    assert ranked.post_down[0] == pytest.approx(
        held.parameters["mu"] - ranked.best.parameters["mu"]
    )


def as_on_an_accelerator(fits: engine.Eager, problems: Any, progress: Any) -> Any:
    """In chunks, on eight lanes, the last problems of a chunk on two."""
    few, device = device_fits.Occupancy(chunk=16, lanes=8), (jax.devices()[0],)
    works: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_MANY", 8)
        patch.setattr(lanes, "_NARROW", 4)
        found = device_fits.fits_on_devices(
            fits.prepared, problems, device, progress, works.append, few
        )
    steps, lane_steps = (sum(int(work[i].sum()) for work in works) for i in range(2))
    assert steps == found.iterations.sum()
    assert steps <= lane_steps < 2 * steps
    return found


def test_no_toy_ends_above_the_lowest_of_a_grid() -> None:
    """On cores one after the other, and in a batch as on an accelerator."""
    loaded = load(COUPLED)
    toys = hf.toys(loaded, 25, key=1, parameters={"mu": 0.5, "a0": -0.6})
    for values, data in zip(toys.values, toys.data, strict=True):
        found = dict(zip(toys.names, values, strict=True))
        main, aux = data[:4], data[4]
        lowest, _ = COUPLED.lowest(main, aux)
        assert height(COUPLED, found, main, aux) <= lowest + 1e-9
    assert max(toys.branches) > 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.Eager, "_fit_compiled", as_on_an_accelerator)
        patch.setattr(programs, "PATIENCE", 0.0)
        batch = hf.toys(loaded, 25, key=1, parameters={"mu": 0.5, "a0": -0.6})
    np.testing.assert_allclose(batch.nll, toys.nll, rtol=1e-12)
    np.testing.assert_allclose(batch.values, toys.values, atol=1e-7)


def test_a_free_fit_above_a_conditional_one_is_repeated_from_there() -> None:
    """Even if the test for branches misses it: the conditional minimum is open to the free fit."""
    rng = np.random.default_rng(2)
    with pytest.MonkeyPatch.context() as patch:
        # Nothing is suspected any more, so every search ends in the minimum downhill of its start.
        patch.setattr("firstlight.histfactory.branches.RISKY", math.inf)
        differences = []
        for model in family(21, 8, alphas=1, strength=0.3):
            found = hf.discovery(load(model), drawn(model, rng))
            differences.append(found.conditional.nll - found.free.nll)
    assert min(differences) >= -1e-9


def test_a_fit_that_follows_its_start_stays_in_that_minimum() -> None:
    """As in the steps of a training loop; in NumPy and in a program."""
    loaded = load(COUPLED)
    eager = engine.Eager(loaded)
    problem = problem_of(eager, data_of(loaded, COUPLED_DATA))
    with float64_scope(), np.errstate(all="ignore"):
        free = lowest(eager.prepared, problem, np)
        mirrored = np.where(np.arange(len(free.theta)) == 0, -free.theta, free.theta)
        other = problem.starting_at(mirrored)
        searched = lowest(eager.prepared, other, np)
        followed = lowest(eager.prepared, other, np, np.True_)
        in_a_program = jax.jit(
            lowest, static_argnames="xp", compiler_options=programs.compiler_options()
        )(eager.prepared.on_device, other, follow=True)
    assert searched.branches == free.branches == 2
    assert searched.nll == pytest.approx(free.nll, abs=1e-10)
    assert followed.branches == in_a_program.branches == 1
    assert followed.status == 0 and followed.nll > free.nll + 1e-3
    assert float(in_a_program.nll) == pytest.approx(followed.nll, abs=1e-10)


# --- programs -------------------------------------------------------------------------------------


def test_a_limit_in_a_program_is_the_same_and_its_derivative_follows_the_lower_branch() -> None:
    loaded = load(COUPLED)

    def limit(scale: Any) -> Any:
        changed = loaded.with_nominal({("SR", "signal"): scale * COUPLED.signal})
        return hf.upper_limit(changed, data=COUPLED_DATA).observed

    with jax.enable_x64(True):
        value, slope = jax.jit(
            jax.value_and_grad(limit), compiler_options=programs.compiler_options()
        )(1.0)
    assert float(value) == pytest.approx(limit(1.0), rel=1e-9)
    # Twice the signal is half the limit, so the derivative is known: -μ_up.
    assert float(slope) == pytest.approx(-limit(1.0), rel=1e-7)


def test_a_single_minimum_takes_a_single_search() -> None:
    """The test for branches costs no step of the search when it is negative."""
    for preset in ("complex-8p", "thu-184p"):
        model = hf.load(synthetic.preset(preset))
        found = hf.fit(model)
        problem = problem_of(engine.Eager(model), data_of(model))
        with float64_scope():
            once = jax.jit(search, compiler_options=programs.compiler_options())
            alone, _ = once(prepared(model).on_device, problem, problem.start)
        assert found.branches == 1
        assert found.iterations == int(alone.iterations)
