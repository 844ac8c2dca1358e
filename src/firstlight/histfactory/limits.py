"""Upper limits: the signal strengths at which CLs falls to a level, observed and expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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
from firstlight.histfactory.engine import Traced, engine_for
from firstlight.histfactory.exclusion import (
    BANDS,
    FREE,
    NULL,
    ON_ASIMOV,
    ON_DATA,
    CLsStatus,
    Ended,
    HypothesisTest,
    Minima,
    Setup,
    TestInProgram,
    deviation,
    interpolated,
    q_of_asimov,
    statistics_of,
    status_of,
)
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.hypotheses import one_sided, poi_value, require_statistic, square_root
from firstlight.histfactory.internal_order import data_of, poi_position
from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Problem
from firstlight.histfactory.precision import in_float64, is_traced
from firstlight.histfactory.profiling import entered, gradients, searches, unknown, where

_STEPS = 60
#: After so many, every other step halves the bracket.
_QUICK = 8
#: A root is found if the next step from a value this small is shorter than this share of it. Such a
#: step leaves an error of the order of its third power, except at a kink.
_NEAR_ROOT, _RELATIVE_STEP = 1e-6, 1e-9
#: No limit is looked for at more than this many times the smallest strength tried.
_FAR = 1e6


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
    *,
    require_positive: bool = False,
) -> UpperLimit:
    """The signal strength at which CLs falls to `level`. It may exceed the parameter's bounds.

    require_positive: as for `fit`.

    Fails if `level` is not a probability. `.status` says if a fit did not converge, CLs never falls
    to the level, or is undefined because the data are impossible without signal.
    """
    require_statistic(test_statistic)
    if not is_traced(level) and not (isinstance(level, float) and 0 < level < 1):
        raise ModelError(f"level is {level!r}; give a probability between 0 and 1, such as 0.05.")
    fixed = as_fixed(model, fixed)
    engine = engine_for(model, level, data, fixed, init, require_positive=require_positive)
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


def _sigma_of(xp: Numpy, mu: Number, q_asimov: Array) -> Array:
    """Standard deviation of the estimator from the Asimov data, Eq. 30."""
    return mu / xp.sqrt(xp.maximum(q_asimov, 1e-12))


@np.errstate(all="ignore")  # as in `cls_of`
def find_limits(test: HypothesisTest, level: float) -> UpperLimit:
    """The limits of a test outside JAX transformations.

    CLs is Φ(N - √q_A)/Φ(N) if the data exceed the background by N standard deviations, so the limit
    is where √q_A(μ) = N - Φ⁻¹(level·Φ(N)). N is constant for the expected limits and varies little
    with μ for the observed one. √q_A takes one fit and is nearly linear in μ, so that a few fits,
    shared by all bands, give each root by interpolation.
    """
    curve = _Curve(test)
    curve.root(1.0)  # with that at zero, a scale
    expected = {}
    for band in (0, 2, -2, 1, -1):
        needed = _needed(band, level)
        known = {mu: needed - root for mu, root in curve.known.items()}
        expected[band] = find_root(partial(_short, curve, needed), known)
    observed, free = math.nan, None
    while free is not test.free:  # again, if a fit on the way has led to a lower free fit
        free, curve.best = test.free, float(poi_value(test.engine, test.free))
        observed = _observed_limit(curve, level)
    values = np.array([expected[band] for band in BANDS])
    status = curve.status
    if not np.all(np.isfinite([observed, *values])):
        status = max(status, CLsStatus.LEVEL_NOT_REACHED)
    return UpperLimit(observed, values, level, int(status), curve.branches)


def _short(curve: _Curve, needed: float, mu: float) -> float:
    """How much √q_A is below what an exclusion needs."""
    return needed - curve.root(mu)


def _observed_limit(curve: _Curve, level: float) -> float:
    """The observed limit, once the expected ones are known."""

    def missing(mu: float) -> float:
        return _short(curve, _needed(curve.excess(mu), level), mu)

    def nearest(mu: float) -> float:
        return min((known for known in curve.known if known > 0), key=lambda k: abs(k - mu))

    if not all(map(math.isfinite, curve.known.values())):
        return math.nan
    # Begin where the limit is if the excess is that of the best fit for every strength.
    best = max(0.0, curve.best)
    excess = best * curve.root(nearest(best)) / nearest(best)
    begin = nearest(curve.where(_needed(excess, level)))
    at_begin = missing(begin)
    return find_root(missing, {begin: at_begin}, curve.where(at_begin + curve.root(begin)))


def _needed(excess: float, level: float) -> float:
    """√q_A where CLs falls to the level if the data exceed the background by so many σ."""
    tail = level * 0.5 * math.erfc(-excess / math.sqrt(2))
    return excess - NormalDist().inv_cdf(tail) if 0 < tail < 1 else math.nan


class _Curve:
    """√q_A and the excess of the data as functions of the signal strength."""

    def __init__(self, test: HypothesisTest) -> None:
        self._test = test
        self.known = {0.0: 0.0}  # √q_A by signal strength
        self.status = status_of(np, test.null, test.free, test.null)
        self.branches = 1
        self.best = float(poi_value(test.engine, test.free))
        self._note(test.free, test.null)

    def root(self, mu: float) -> float:
        """√q_A."""
        if mu not in self.known:
            self._enter(mu, self._test.fit_asimov(mu))
        return self.known[mu]

    def where(self, root: float) -> float:
        """About where √q_A has a value."""
        return _proposed({mu: root - known for mu, known in self.known.items()}, 0.0, math.inf)

    def excess(self, mu: float) -> float:
        """By how many standard deviations the data exceed the background, judged at `mu`."""
        test, engine = self._test, self._test.engine
        if mu in self.known:
            on_data = test.fit_data(mu)
        else:
            on_data, on_asimov = test.fits_at(mu)
            self._enter(mu, on_asimov)
        self._note(on_data)
        q = one_sided(engine, mu, test.free, on_data)
        distance, _ = deviation(engine, q, self.known[mu] ** 2, test.setup.test_statistic)
        return -float(distance)

    def _enter(self, mu: float, on_asimov: Minimum) -> None:
        self._note(on_asimov)
        possible = np.isfinite(self._test.null.nll)  # or there is nothing to compare with
        q = q_of_asimov(self._test.engine, on_asimov) if possible else math.nan
        self.known[mu] = float(square_root(q))

    def _note(self, *fits: Minimum) -> None:
        self.status = max(self.status, status_of(np, self._test.null, *fits))
        self.branches = max(self.branches, *(int(fit.branches) for fit in fits))


def find_root(
    function: Callable[[float], float], known: Mapping[float, float], guess: float | None = None
) -> float:
    """The root of a falling function that is positive at zero; NaN if there is none.

    known: its values at some arguments; guess: where to evaluate first.
    """
    known = dict(known)
    if any(map(math.isnan, known.values())):
        return math.nan
    for step in range(_STEPS):
        high = min((x for x, value in known.items() if value <= 0), default=math.inf)
        low = max((x for x, value in known.items() if value > 0 and x < high), default=0.0)
        following = _proposed(known, low, high)
        if step == 0 and guess is not None and low < guess < high:
            following = guess
        nearest = min(known, key=lambda x: abs(known[x]))
        error = abs(known[nearest])
        if error < 1e-13:
            return nearest
        moves = abs(following - nearest) > _RELATIVE_STEP * nearest
        if (error < _NEAR_ROOT and not moves) or high - low < 1e-13 * (1 + high):
            return following
        if step > _QUICK and step % 2 and math.isfinite(high):
            following = 0.5 * (low + high)
        if math.isnan(following):
            return math.nan
        value = function(following)
        if math.isnan(value):
            return math.nan
        known[following] = max(value, -1e300)
    return math.nan


def _proposed(known: Mapping[float, float], low: float, high: float) -> float:
    """Where to evaluate next: the root of a curve through known values, inside the bracket."""
    arguments: list[float] = []
    values: list[float] = []
    for x in sorted(known, key=lambda x: abs(known[x])):
        # Close values far from the root would only amplify rounding.
        if all(abs(known[x] - value) > 0.1 * abs(values[0]) for value in values):
            arguments.append(x)
            values.append(known[x])
    inside: float = interpolated(values[:4], arguments[:4], 0.0)
    if len(values) > 1 and low < inside < high:
        return inside
    if math.isfinite(high):
        return 0.5 * (low + high)
    largest, smallest = max(known), min((x for x in known if x > 0), default=math.inf)
    return 2 * largest if largest < _FAR * smallest else math.nan  # there is no root


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
    reached = jnp.where(jnp.all(end.closed), 0, int(CLsStatus.LEVEL_NOT_REACHED))
    status = jnp.maximum(status_of(jnp, minima.null, *minima), reached).astype(jnp.int32)
    branches = jnp.max(jnp.concatenate([jnp.ravel(fit.branches) for fit in minima]))
    return UpperLimit(roots[0], roots[1:], level, status, branches)


def _still_height(test: TestInProgram, statistics: Array, band: Array, level: Number) -> Array:
    """ln(CLs/level) of the statistics of the data and of the Asimov data, elementwise.

    Band 0 is observed, 1 to 5 are expected. Nearly linear in the signal strength.
    """
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
