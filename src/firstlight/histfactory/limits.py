"""Upper limits: the signal strengths at which CLs falls to a level, observed and expected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.array_types import (
    Array,
    Count,
    DataSet,
    Number,
    Numpy,
    Parameters,
    Truth,
)
from firstlight.histfactory.engine import Traced, engine_for
from firstlight.histfactory.exclusion import (
    BANDS,
    FREE,
    NULL,
    ON_ASIMOV,
    ON_DATA,
    CLs,
    HypothesisTest,
    Minima,
    Setup,
    TestInProgram,
    deviation,
    q_of_asimov,
    statistics_of,
)
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.hypotheses import require_statistic
from firstlight.histfactory.internal_order import data_of, poi_position
from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Problem
from firstlight.histfactory.precision import in_float64, is_traced
from firstlight.histfactory.profiling import entered, gradients, searches, unknown, where

_STEPS = 60


@pytree
@dataclass(frozen=True)
class UpperLimit:
    """Upper limit at confidence level 1 - `level`: observed, and expected at -2, -1, 0, 1, 2 σ."""

    observed: Number
    expected: Array
    level: Number
    converged: Truth
    branches: Count  # the largest number of minima found by one of its fits


@in_float64
@first_gradient_by("firstlight.histfactory.exclusion_gradients:upper_limit")
def upper_limit(
    model: Model,
    level: float = 0.05,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    test_statistic: str = "qtilde",
) -> UpperLimit:
    """The signal strength at which CLs falls to `level`. It may exceed the parameter's bounds.

    Fails if `level` is not a probability. `.converged` is false if a fit did not converge or CLs
    never falls to the level.
    """
    require_statistic(test_statistic)
    if not is_traced(level) and not (isinstance(level, float) and 0 < level < 1):
        raise ModelError(f"level is {level!r}; give a probability between 0 and 1, such as 0.05.")
    fixed = as_fixed(model, fixed)
    engine = engine_for(model, level, data, fixed, init)
    setup = Setup(engine, data_of(model, data), fixed, init, test_statistic)
    if isinstance(engine, Traced):
        return _in_program(setup, level)
    return find_limits(HypothesisTest(setup), level)


class _Bracket(NamedTuple):
    """A root between `low` and `high`, and where to look next (regula falsi, Illinois variant)."""

    low: Array
    at_low: Array
    high: Array  # infinite until the function was below zero
    at_high: Array
    next: Array
    side: Array  # of the last evaluation: 1 low, -1 high
    steps: Array
    closed: Array


def _advance(xp: Numpy, b: _Bracket, value: Array) -> _Bracket:
    """The bracket after the falling function was evaluated at `b.next`."""
    rises = value > 0
    low, at_low = xp.where(rises, b.next, b.low), xp.where(rises, value, b.at_low)
    high, at_high = xp.where(rises, b.high, b.next), xp.where(rises, b.at_high, value)
    side = xp.where(rises, 1.0, -1.0)
    # Halve the value of an end that stays twice; otherwise it could stay forever.
    stale = side == b.side
    at_high = xp.where(stale & rises, 0.5 * at_high, at_high)
    at_low = xp.where(stale & ~rises, 0.5 * at_low, at_low)
    bounded = xp.isfinite(high)
    width = xp.where(bounded, high - low, 1.0)
    inside = low + width * at_low / (at_low - at_high)
    following = xp.where(bounded, inside, 2 * b.next)
    closed = (xp.abs(value) < 1e-13) | (bounded & (width < 1e-13 * (1 + high)))
    closed = closed & xp.isfinite(value)
    following = xp.where(closed, b.next, following)
    return _Bracket(low, at_low, high, at_high, following, side, b.steps + 1, closed)


def _opened(xp: Numpy, guess: Array, level: Array) -> _Bracket:
    """The bracket before the first evaluation: CLs is 1 without signal, so the root is above 0."""
    return _Bracket(0.0, xp.log(1 / level), math.inf, -1.0, guess, 0.0, 0.0, False)


def _guess(sigma: Array, band: int | None, level: Array) -> Array:
    """The limit for a Gaussian estimator of width σ; Eq. 89 of arXiv:1007.1727."""
    normal, n = NormalDist(), band or 0
    usual = 0.05 if is_traced(level) else float(level)
    return sigma * (n + normal.inv_cdf(1 - usual * normal.cdf(n)))


def _height(xp: Numpy, result: CLs, band: Array, level: float) -> Array:
    """ln(CLs/level), nearly linear in μ. Band 0 is observed, 1 to 5 are expected."""
    value = xp.concatenate([xp.reshape(xp.asarray(result.observed), (1,)), result.expected])[band]
    return xp.log(xp.maximum(value, 1e-300) / level)


def _sigma(test: HypothesisTest, mu: Number) -> Array:
    """Standard deviation of the estimator from the Asimov data, Eq. 30."""
    _, on_asimov = test.fits_at(mu)
    return _sigma_of(np, mu, q_of_asimov(test.engine, on_asimov))


def _sigma_of(xp: Numpy, mu: Number, q_asimov: Array) -> Array:
    return mu / xp.sqrt(xp.maximum(q_asimov, 1e-12))


def find_limits(test: HypothesisTest, level: float) -> UpperLimit:
    """The limits of a test outside JAX transformations, one root after another."""
    sigma = _sigma(test, 1.0)
    values, good, branches = [], True, 1
    for i, band in enumerate((None, *BANDS)):
        bracket = _opened(np, _guess(sigma, band, level), level)
        # There is no limit to find where CLs is NaN.
        while not bracket.closed and bracket.steps < _STEPS and math.isfinite(bracket.next):
            result = test.at(float(bracket.next))
            good &= result.converged
            branches = max(branches, result.branches)
            bracket = _advance(np, bracket, _height(np, result, i, level))
        values.append(float(bracket.next) if bracket.closed else math.nan)
        good &= bool(bracket.closed)
    return UpperLimit(values[0], np.array(values[1:]), level, good, branches)


class _Search(NamedTuple):
    """The search for the roots of all bands, one after another."""

    known: Minimum  # the latest of each of the four fits
    turn: Array  # which of them is next
    bracket: _Bracket
    band: Array  # whose root is being searched
    sigma: Array
    begun: Array  # True after the first test, which is for σ
    roots: Array  # of every band
    closed: Array
    pairs: Minimum  # the fits at every root


def _in_program(setup: Setup, level: Number) -> UpperLimit:
    """The limits in a program, with derivatives by the implicit function theorem at the roots."""
    test, still_level = TestInProgram(setup), jax.lax.stop_gradient(level)
    end = _find_roots(test, still_level)
    first = jax.tree.map(lambda a: a[:ON_DATA], end.known)
    minima, problems, theta = test.minima(end.roots, first, end.pairs)
    # The likelihood of a fit changes with the strength that it holds as at fixed parameters.
    by_mu = gradients(setup.engine.prepared, problems, theta)[1:, poi_position(setup.engine.model)]
    by_mu = by_mu.reshape(2, -1)
    statistics = jnp.stack(statistics_of(setup.engine, end.roots, minima))
    still = jax.lax.stop_gradient(statistics)
    bands = jnp.arange(len(end.roots))
    _, weighted = jax.vjp(lambda s: _still_height(test, s, bands, still_level), still)
    (by_statistic,) = weighted(jnp.ones(len(end.roots)))
    # At a root, ln CLs changes with everything as much as with μ, which makes up for it.
    change = jnp.sum(by_statistic * (statistics - still), axis=0) - jnp.log(level / still_level)
    slope = jnp.sum(by_statistic * jnp.where(still > 0, 2 * by_mu, 0.0), axis=0)
    roots = end.roots - change / slope
    fits = (minima.free, minima.null, minima.on_data, minima.on_asimov)
    fitted = jnp.all(jnp.concatenate([jnp.ravel(fit.status == 0) for fit in fits]))
    branches = jnp.max(jnp.concatenate([jnp.ravel(fit.branches) for fit in fits]))
    return UpperLimit(roots[0], roots[1:], level, jnp.all(end.closed) & fitted, branches)


def _still_height(test: TestInProgram, statistics: Array, band: Array, level: Number) -> Array:
    """`_height` of test statistics of the data and of the Asimov data, elementwise."""
    q, q_asimov = statistics
    distance, root_asimov = deviation(test.engine, q, q_asimov, test.setup.test_statistic)
    # CLs expected in a band is that of data which deviate by as much.
    distance = jnp.where(band > 0, -jnp.asarray((0.0, *BANDS))[band], distance)
    clsb, clb = test.engine.tail(jnp.stack([distance + root_asimov, distance]))
    return jnp.log(jnp.maximum(clsb / clb, 1e-300) / level)


def _find_roots(test: TestInProgram, level: Number) -> _Search:
    """The roots of all bands and the fits there, without derivatives."""
    guesses = jnp.stack([_guess(1.0, band, level) for band in (None, *BANDS)])
    n = len(guesses)

    def opened(guess: Array) -> _Bracket:
        bracket = _opened(jnp, guess, level)
        return _Bracket(*(jnp.asarray(v, bool if v is False else float) for v in bracket))

    def problem_of(s: _Search) -> Problem:
        # The fits of a test start where those of the test before it ended.
        before = jnp.where(s.begun, s.turn, jnp.maximum(s.turn - ON_DATA, FREE))
        theta = s.known.theta
        return test.problem(s.turn, s.bracket.next, theta[NULL], theta[before])

    def after(s: _Search, found: Minimum) -> _Search:
        known = entered(jnp.arange(4) == s.turn, s.known, found)
        minima = Minima(*(jax.tree.map(lambda a, i=i: a[i], known) for i in range(4)))
        statistics = jnp.stack(statistics_of(test.still.engine, s.bracket.next, minima))
        tested = s.turn == ON_ASIMOV
        bracket = _advance(jnp, s.bracket, _still_height(test, statistics, s.band, level))
        sigma = jnp.where(s.begun, s.sigma, _sigma_of(jnp, s.bracket.next, statistics[1]))
        # There is no limit to find where CLs is NaN.
        ended = bracket.closed | (bracket.steps >= _STEPS) | ~jnp.isfinite(bracket.next)
        ended &= tested & s.begun
        here = (jnp.arange(n) == s.band) & ended
        band = s.band + ended
        fresh = opened(sigma * guesses[jnp.minimum(band, n - 1)])
        following = where(ended | ~s.begun, fresh, bracket)
        pair = jax.tree.map(lambda a: a[ON_DATA:], known)
        return _Search(
            known=known,
            turn=jnp.where(tested, ON_DATA, s.turn + 1),
            bracket=where(tested, following, s.bracket),
            band=band,
            sigma=jnp.where(tested, sigma, s.sigma),
            begun=s.begun | tested,
            roots=jnp.where(here, jnp.where(bracket.closed, bracket.next, jnp.nan), s.roots),
            closed=jnp.where(here, bracket.closed, s.closed),
            pairs=entered(here, s.pairs, pair),
        )

    nothing = unknown(test.still_model, 4)
    begin = _Search(
        known=nothing,
        turn=jnp.zeros((), int),
        bracket=opened(1.0),
        band=jnp.zeros((), int),
        sigma=jnp.ones(()),
        begun=jnp.zeros((), bool),
        roots=jnp.full(n, jnp.nan),
        closed=jnp.zeros(n, bool),
        pairs=jax.tree.map(lambda a: jnp.stack([a[ON_DATA:]] * n), nothing),
    )
    return searches(test.still_model, begin, problem_of, after, lambda s: s.band < n)
