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
)
from firstlight.histfactory.closed_form import assemble, evaluate
from firstlight.histfactory.engine import Traced, engine_for
from firstlight.histfactory.exclusion import (
    BANDS,
    CLs,
    CLsStatus,
    Ended,
    HypothesisTest,
    Minima,
    PairSearch,
    Setup,
    as_pair,
    cls_of,
    q_of_asimov,
    status_of,
)
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.hypotheses import require_statistic
from firstlight.histfactory.internal_order import data_of, poi_position
from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.linear_systems import factorise, solve
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum
from firstlight.histfactory.precision import in_float64, is_traced

_STEPS = 60


@pytree
@dataclass(frozen=True)
class UpperLimit(Ended):
    """Upper limit at confidence level 1 - `level`: observed, and expected at -2, -1, 0, 1, 2 σ."""

    observed: Number
    expected: Array
    level: Number
    status_code: Count
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

    Fails if `level` is not a probability. `.status` says if a fit did not converge, CLs never falls
    to the level, or is undefined because the data are impossible without signal.
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
    xp = test.engine.xp
    _, on_asimov = test.fits_at(mu)
    q = xp.maximum(q_of_asimov(test.engine, on_asimov), 1e-12)
    return mu / xp.sqrt(q)


def _first_sigma(setup: Setup) -> Array:
    """An estimate of `_sigma` before any fit, from the Hessian at the starting point."""
    index = poi_position(setup.engine.model)
    start = setup.first_problems()[0]
    free = (1.0 - jnp.asarray(start.fixed)).at[index].set(1.0)
    curvature = evaluate(setup.engine.prepared, setup.data, start.start).curvature
    assert curvature is not None
    unit = jnp.zeros_like(free).at[index].set(1.0)
    variance = solve(factorise(assemble(curvature, 0.0), free), unit)[index]
    return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 1.0)


@np.errstate(all="ignore")  # as in `cls_of`
def find_limits(test: HypothesisTest, level: float) -> UpperLimit:
    """The limits of a test outside JAX transformations, one root after another."""
    sigma = _sigma(test, 1.0)
    values, branches = [], 1
    status = int(status_of(np, test.null, test.free, test.null))
    for i, band in enumerate((None, *BANDS)):
        bracket = _opened(np, _guess(sigma, band, level), level)
        # There is no limit to find where CLs is NaN.
        while not bracket.closed and bracket.steps < _STEPS and math.isfinite(bracket.next):
            result = test.at(float(bracket.next))
            # An expected limit needs no CLb of the data.
            if result.status_code > CLsStatus.UNLIKELY_NULL:
                status = max(status, result.status_code)
            branches = max(branches, result.branches)
            bracket = _advance(np, bracket, _height(np, result, i, level))
        values.append(float(bracket.next) if bracket.closed else math.nan)
        if not bracket.closed:
            status = max(status, int(CLsStatus.LEVEL_NOT_REACHED))
    return UpperLimit(values[0], np.array(values[1:]), level, status, branches)


class _Search(NamedTuple):
    """The search for the roots of all bands, one after another."""

    first: Minimum  # the pair of fits that does not depend on the signal strength
    bracket: _Bracket
    band: Array  # whose root is being searched
    started: Array
    roots: Array  # of every band
    closed: Array
    pairs: Minimum  # the fits at every root


def _in_program(setup: Setup, level: Number) -> UpperLimit:
    """The limits in a program, with derivatives by the implicit function theorem at the roots."""
    search = PairSearch(setup)
    still_level = jax.lax.stop_gradient(level)
    end = _find_roots(search, still_level)
    test = HypothesisTest(setup, as_pair(end.first))
    still_test = HypothesisTest(search.setup, as_pair(end.first))

    def follow(problem: Array) -> Array:
        mu, band, pair = problem

        def still_height(m: Array) -> Array:
            return _height(jnp, still_test.at(m, as_pair(pair)), band, still_level)

        result = test.at(mu, as_pair(pair))
        _, slope = jax.jvp(still_height, (mu,), (jnp.ones_like(mu),))
        root = mu - _height(jnp, result, band, level) / slope
        return root, result.status_code, result.branches

    bands = jnp.arange(len(end.roots))
    roots, tested, branches = jax.lax.map(follow, (end.roots, bands, end.pairs))
    tested = jnp.where(tested > int(CLsStatus.UNLIKELY_NULL), tested, 0)
    reached = jnp.where(jnp.all(end.closed), 0, int(CLsStatus.LEVEL_NOT_REACHED))
    status = jnp.maximum(jnp.max(tested), reached).astype(jnp.int32)
    return UpperLimit(roots[0], roots[1:], level, status, jnp.max(branches))


def _find_roots(search: PairSearch, level: Number) -> _Search:
    """The roots of all bands and the fits there, without derivatives."""
    sigma = _first_sigma(search.setup)
    guesses = jnp.stack([_guess(sigma, band, level) for band in (None, *BANDS)])
    n = len(guesses)

    def opened(band: Array) -> _Bracket:
        bracket = _opened(jnp, guesses[band], level)
        return _Bracket(*(jnp.asarray(v, bool if v is False else float) for v in bracket))

    def step(s: _Search) -> _Search:
        found = search(~s.started, s.first, s.bracket.next)
        first = jax.tree.map(lambda a, b: jnp.where(s.started, a, b), s.first, found)
        minima = Minima(*as_pair(first), *as_pair(found))
        result = cls_of(search.engine, s.bracket.next, minima, search.setup.test_statistic)
        bracket = _advance(jnp, s.bracket, _height(jnp, result, s.band, level))
        ended = s.started & (bracket.closed | (bracket.steps >= _STEPS))
        here = (jnp.arange(n) == s.band) & ended
        fresh, following = ended | ~s.started, opened(jnp.minimum(s.band + ended, n - 1))

        def entered(all_: Array, one: Array) -> Array:
            return jnp.where(here.reshape(-1, *(1,) * one.ndim), one, all_)

        return _Search(
            first=first,
            bracket=jax.tree.map(lambda a, b: jnp.where(fresh, a, b), following, bracket),
            band=s.band + ended,
            started=jnp.ones((), bool),
            roots=jnp.where(here, jnp.where(bracket.closed, bracket.next, jnp.nan), s.roots),
            closed=jnp.where(here, bracket.closed, s.closed),
            pairs=jax.tree.map(entered, s.pairs, found),
        )

    nothing = search.nothing()
    begin = _Search(
        first=nothing,
        bracket=opened(0),
        band=jnp.zeros((), jnp.int32),
        started=jnp.zeros((), bool),
        roots=jnp.full(n, jnp.nan),
        closed=jnp.zeros(n, bool),
        pairs=jax.tree.map(lambda a: jnp.stack([a] * n), nothing),
    )
    end: _Search = jax.lax.while_loop(lambda s: s.band < n, step, begin)
    return end
