"""Upper limits: where CLs falls to a level, observed and expected."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from firstlight.histfactory.engine import Traced, engine_for
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.inference import (
    BANDS,
    CLs,
    HypothesisTest,
    require_statistic,
)
from firstlight.histfactory.internal_order import data_of, poi_position
from firstlight.histfactory.likelihood import assemble, evaluate
from firstlight.histfactory.model import Model, ModelError
from firstlight.histfactory.newton import factorise, solve
from firstlight.histfactory.precision import in_float64, is_traced

_STEPS = 60


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UpperLimit:
    """Upper limit at confidence level 1 - `level`: observed, and expected at -2, -1, 0, 1, 2 σ."""

    observed: Any
    expected: Any
    level: Any
    converged: Any
    branches: Any  # the largest number of minima found by one of its fits


@in_float64
def upper_limit(
    model: Model,
    level: float = 0.05,
    data: Any = None,
    fixed: Fixed = None,
    init: Any = None,
    test_statistic: str = "qtilde",
) -> UpperLimit:
    """The signal strength at which CLs falls to `level`, which may be beyond its bounds.

    Fails if `level` is not a probability. `.converged` is false if a fit did not converge or CLs
    never falls to the level.
    """
    require_statistic(test_statistic)
    if not is_traced(level) and not (isinstance(level, float) and 0 < level < 1):
        raise ModelError(f"level is {level!r}; give a probability between 0 and 1, such as 0.05.")
    fixed = as_fixed(model, fixed)
    engine = engine_for(model, level, data, fixed, init)
    test = HypothesisTest(engine, data_of(model, data), fixed, init, test_statistic)
    limits = _in_program if isinstance(engine, Traced) else _by_calls
    return limits(test, level)


class _Bracket(NamedTuple):
    """A root between `low` and `high`, and where to look next (regula falsi, Illinois variant)."""

    low: Any
    at_low: Any
    high: Any  # infinite until the function has been seen below zero
    at_high: Any
    next: Any
    side: Any  # of the last evaluation: 1 low, -1 high
    steps: Any
    closed: Any


def _advance(xp: Any, b: _Bracket, value: Any) -> _Bracket:
    """The bracket after the falling function was evaluated at `b.next`."""
    rises = value > 0
    low, at_low = xp.where(rises, b.next, b.low), xp.where(rises, value, b.at_low)
    high, at_high = xp.where(rises, b.high, b.next), xp.where(rises, b.at_high, value)
    side = xp.where(rises, 1.0, -1.0)
    # An end that stays twice counts half, or it would stay forever.
    stale = side == b.side
    at_high = xp.where(stale & rises, 0.5 * at_high, at_high)
    at_low = xp.where(stale & ~rises, 0.5 * at_low, at_low)
    bounded = xp.isfinite(high)
    width = xp.where(bounded, high - low, 1.0)
    inside = low + width * at_low / (at_low - at_high)
    following = xp.where(bounded, inside, 2 * b.next)
    closed = (xp.abs(value) < 1e-13) | (bounded & (width < 1e-13 * (1 + high)))
    closed = closed & xp.isfinite(value)
    return _Bracket(
        low,
        at_low,
        high,
        at_high,
        xp.where(closed, b.next, following),
        side,
        b.steps + 1,
        closed,
    )


def _opened(xp: Any, guess: Any, level: Any) -> _Bracket:
    """CLs is one without signal, so the root is above zero."""
    return _Bracket(0.0, xp.log(1 / level), math.inf, -1.0, guess, 0.0, 0.0, False)


def _guess(sigma: Any, band: int | None, level: Any) -> Any:
    """The limit if the estimator were Gaussian of width σ; Eq. 89 of arXiv:1007.1727."""
    normal, n = NormalDist(), band or 0
    usual = 0.05 if is_traced(level) else level
    return sigma * (n + normal.inv_cdf(1 - usual * normal.cdf(n)))


def _height(xp: Any, result: CLs, band: Any, level: float) -> Any:
    """ln(CLs/level), nearly linear in μ. Band 0 is the observed one, the others are expected."""
    value = xp.concatenate([xp.reshape(xp.asarray(result.observed), (1,)), result.expected])[band]
    return xp.log(xp.maximum(value, 1e-300) / level)


def _sigma(test: HypothesisTest, mu: Any) -> Any:
    """Standard deviation of the estimator from the Asimov data, Eq. 30."""
    xp = test.engine.xp
    _, on_asimov = test.fits_at(mu)
    q = xp.maximum(test.q_asimov(on_asimov), 1e-12)
    return mu / xp.sqrt(q)


def _curvature_sigma(test: HypothesisTest) -> Any:
    """The same from the Hessian of the fit without signal: less exact, but needs no other fit."""
    index = poi_position(test.engine.model)
    free = test.null.free.at[index].set(1.0)
    unit = jnp.zeros_like(free).at[index].set(1.0)
    curvature = evaluate(test.engine.prepared, test.data, test.null.theta).curvature
    assert curvature is not None
    variance = solve(factorise(assemble(curvature), free), unit)[index]
    return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1.0)), 1.0)


def _by_calls(test: HypothesisTest, level: float) -> UpperLimit:
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


def _in_program(test: HypothesisTest, level: float) -> UpperLimit:
    """The same as one program, with derivatives by the implicit function theorem at the roots."""
    still = copy.copy(test)
    still.engine = copy.copy(test.engine)
    still.engine.prepared = jax.lax.stop_gradient(test.engine.prepared)
    still.data, still.asimov, still.free, still.null = jax.lax.stop_gradient(
        (test.data, test.asimov, test.free, test.null)
    )
    sigma = _curvature_sigma(still)
    bands = range(len(BANDS) + 1)
    guesses = jnp.stack([_guess(sigma, band, level) for band in (None, *BANDS)])

    def root(problem: Any) -> Any:
        guess, band = problem

        def step(bracket: _Bracket) -> _Bracket:
            return _advance(jnp, bracket, _height(jnp, still.at(bracket.next), band, level))

        start = jax.tree.map(lambda a: jnp.asarray(a, float), _opened(jnp, guess, level))
        start = start._replace(closed=jnp.zeros((), bool))
        end = jax.lax.while_loop(lambda b: ~b.closed & (b.steps < _STEPS), step, start)
        return jnp.where(end.closed, end.next, jnp.nan), end.closed

    roots, closed = jax.lax.map(root, (guesses, jnp.array(bands)))

    def follow(problem: Any) -> Any:
        mu, band = problem
        height: Callable[[Any], Any] = lambda m: _height(jnp, test.at(m), band, level)  # noqa: E731
        value, slope = jax.jvp(height, (mu,), (jnp.ones_like(mu),))
        at_root = test.at(mu)
        return mu - value / jax.lax.stop_gradient(slope), at_root.converged, at_root.branches

    roots, fitted, branches = jax.lax.map(follow, (jax.lax.stop_gradient(roots), jnp.array(bands)))
    return UpperLimit(roots[0], roots[1:], level, jnp.all(closed & fitted), jnp.max(branches))
