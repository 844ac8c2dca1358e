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
    distance_of,
    interpolated,
    q_of_asimov,
    status_of,
)
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.hypotheses import one_sided, poi_value, require_statistic, square_root
from firstlight.histfactory.internal_order import data_of, poi_position
from firstlight.histfactory.lazy_jax import jax, jnp, pytree
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.linear_systems import factorise, solve
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum
from firstlight.histfactory.precision import in_float64, is_traced

_STEPS = 60
#: After so many, every other step halves the bracket.
_QUICK = 8
#: A root is found if the next step from a value this small is shorter than this share of it. Such a
#: step leaves an error of the order of its third power, except at a kink.
_NEAR_ROOT, _RELATIVE_STEP = 1e-6, 1e-9


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


def _first_sigma(setup: Setup) -> Array:
    """The estimator's standard deviation before any fit, from the Hessian at the start."""
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
        return -float(distance_of(engine, q, self.known[mu] ** 2, test.setup.test_statistic))

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
    return 0.5 * (low + high) if math.isfinite(high) else 2 * max(known)


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
