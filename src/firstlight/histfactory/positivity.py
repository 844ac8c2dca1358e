"""Fits at which no sample is below zero: `require_positive=True`.

A fit whose samples are all positive is the answer, to the last digit. Otherwise the factors of
samples are bounded by zero, and every yield below zero gets a wall, -ε ln(yield without factors),
as a pseudo-bin of an enlarged model: a tiny multiple of the yield with the count ε. Searches of the
enlarged model stay on the positive side; ε falls step by step, and Newton steps on the
Karush-Kuhn-Tucker conditions take the last one, to ε = 0. Where yields without a wall then fall
below zero, they get one, too.

A factor of zero removes its samples, whatever their templates do. So the fits with such factors at
zero are tried as well, unless they are higher even without walls.

An additional factor `slack` lifts all walls at a cost above any gain in likelihood: it is zero in
the end unless no parameters keep the yields positive. Such a fit is impossible, as one whose data
are, and its status is IMPOSSIBLE_START.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from firstlight.histfactory.array_types import Array
from firstlight.histfactory.closed_form import dense_hessian, evaluate
from firstlight.histfactory.engine import Eager, Progress
from firstlight.histfactory.likelihood import Data, Prepared, yields
from firstlight.histfactory.newton import Minimum, Problem, Status, is_settled, search
from firstlight.histfactory.sample_yields import below_zero, sizes

#: The factors ε, each starting where the one before ended.
_WALLS = (1e-2, 1e-4, 1e-6)
#: Of a yield in its pseudo-bin: the yield itself then adds nothing to the likelihood.
_SHARE = 1e-12
#: A wall this far from its yield, in units of the yield's size, has no effect.
_FAR = 1e-3
#: Searches from elsewhere at the first ε, fewer if so many have had the lowest end; ends that are
#: followed; and fits with factors at zero that are tried.
_STARTS, _CONFIRMED, _FOLLOWED, _MAX_FITS = 16, 6, 4, 64
_CHORDS = 8


class Positive(Eager):
    """Fits in NumPy at which no sample is below zero."""

    def fits(self, problems: Sequence[Problem], progress: Progress | None = None) -> list[Minimum]:
        found: list[Minimum] = []
        for problem in problems:
            found.append(self._fit(problem))
            if progress is not None:
                progress(len(found), len(problems))
        return found

    def _fit(self, problem: Problem, follow: bool = False) -> Minimum:
        found = super()._fit(problem, follow)
        if not np.any(self._below(found)):
            return found
        return self._lowest(problem)

    def _below(self, found: Minimum) -> Array:
        return below_zero(self.prepared, yields(self.prepared, found.theta, np))

    def _lowest(self, problem: Problem) -> Minimum:
        """The lowest of the fits with none or some of the factors at zero."""
        first = _with_positive_factors(self.prepared, problem)
        best = _impossible(first)
        open_, known = [first], {first.fixed.tobytes()}
        while open_ and len(known) <= _MAX_FITS:
            trial = open_.pop(0)
            free = super()._fit(trial)
            below = self._below(free)
            if is_settled(free.status) and free.nll >= best.nll:
                continue  # and so is every fit with walls
            if np.any(below):
                for held in _with_zero_factors(self.prepared, trial, below):
                    if held.fixed.tobytes() not in known:
                        known.add(held.fixed.tobytes())
                        open_.append(held)
                free = _walled(self.prepared, trial, below)
            if free.nll < best.nll:
                best = free
        return best


def _impossible(problem: Problem) -> Minimum:
    """No fit at all."""
    none, zero = np.zeros_like(problem.start), np.int32(0)
    status = np.int32(Status.IMPOSSIBLE_START)
    return Minimum(problem.start, np.float64(np.inf), none, np.inf, zero, status, np.int32(1))


def _scaling(model: Prepared, cells: Array) -> Array:
    """Which parameters are factors of any of the cells."""
    begin, _ = model.blocks
    factors = np.any((model.factor_mask > 0) & cells, axis=(1, 2))
    gammas = np.any((model.carries_gamma > 0) & cells, axis=0)
    return np.concatenate([np.zeros(begin, bool), factors, gammas])


def _with_positive_factors(model: Prepared, problem: Problem) -> Problem:
    """The problem with zero as a lower bound of the factors of samples that must be positive."""
    scaling = _scaling(model, (model.nominal >= 0) & (sizes(model) > 0))
    lower = np.where(scaling, np.maximum(problem.lower, 0.0), problem.lower)
    return problem._replace(
        start=np.asarray(problem.start), fixed=np.asarray(problem.fixed), lower=lower
    )


def _with_zero_factors(model: Prepared, problem: Problem, cells: Array) -> Iterator[Problem]:
    """The problem with each free factor of the cells in turn held at zero."""
    free = (problem.fixed == 0) & (problem.lower <= 0) & (problem.upper >= 0)
    for i in np.flatnonzero(_scaling(model, cells) & free):
        here = np.arange(len(free)) == i
        yield problem._replace(
            start=np.where(here, 0.0, problem.start),
            guess=np.where(here, 0.0, problem.guess),
            fixed=np.where(here, 1.0, problem.fixed),
        )


@np.errstate(all="ignore")
def _walled(model: Prepared, problem: Problem, cells: Array) -> Minimum:
    """The lowest fit at which all yields are positive; cells: those that may need walls."""
    while True:
        walls = _Walls.before(model, problem, cells)
        found = walls.lowest()
        below = below_zero(model, yields(model, found.theta, np)) & np.isfinite(found.nll)
        if not np.any(below & ~cells):
            return found if not np.any(below) else _impossible(problem)
        cells = cells | below


class _Walls(NamedTuple):
    """An enlarged model with a pseudo-bin for each of some cells."""

    model: Prepared  # as it was
    problem: Problem
    slots: Array  # of the cells
    bins: Array
    enlarged: Prepared
    main: Array  # counts, for ε = 1

    @classmethod
    def before(cls, model: Prepared, problem: Problem, cells: Array) -> _Walls:
        slots, bins = np.nonzero(cells)
        cost = 1e4 * (1 + np.sum(problem.data.main) + np.sum(np.abs(model.nominal)))
        main = np.concatenate([np.zeros_like(problem.data.main), np.ones(len(bins)), np.zeros(1)])
        enlarged = _enlarged(model, slots, bins, float(cost))
        return cls(model, problem, slots, bins, enlarged, main)

    def lowest(self) -> Minimum:
        """The lowest end of searches from several starts."""
        problems = [self._at(epsilon) for epsilon in _WALLS]
        ends = self._ends(problems[0])
        distinct = [e for i, e in enumerate(ends) if not i or e.nll > ends[i - 1].nll + 1e-6]
        finished = [self._followed(end, problems[1:]) for end in distinct[:_FOLLOWED]]
        best = min(finished, key=lambda e: float(e.nll), default=_impossible(self.problem))
        return best._replace(branches=np.int32(max(1, len(finished))))

    def _ends(self, problem: Problem) -> list[Minimum]:
        """The ends of searches until enough of them were the lowest one, the lowest first."""
        ends: list[Minimum] = []
        for start in self._starts():
            ends.append(self._search(problem, start))
            heights = np.array([float(end.nll) for end in ends])
            if np.sum(heights < heights.min() + 1e-6) >= _CONFIRMED:
                break
        return sorted((e for e in ends if np.isfinite(e.nll)), key=lambda e: float(e.nll))

    def _followed(self, end: Minimum, problems: list[Problem]) -> Minimum:
        steps = end.iterations
        for problem in problems:
            following = self._search(problem, end.theta, near=1.0)
            if not np.isfinite(following.nll):
                break
            end, steps = following, steps + following.iterations
        if end.theta[self._slack] > _FAR:
            return _impossible(self.problem)
        return _at_the_walls(self, end, problem)._replace(iterations=steps)

    def _search(self, problem: Problem, start: Array, near: float = 0.0) -> Minimum:
        return search(self.enlarged, problem, start, np.float64(near), np.False_, np)[0]

    @property
    def _slack(self) -> int:
        return self.model.blocks[1]

    def widen(self, theta: Array, slack: float, rest: float) -> Array:
        """A parameter vector of the enlarged model."""
        wide = np.insert(np.asarray(theta, np.float64), self._slack, slack)
        return np.concatenate([wide, np.full(len(self.bins) + 1, rest)])

    def narrow(self, theta: Array) -> Array:
        """A parameter vector of the model as it was."""
        n = len(self.model.weight)
        return np.delete(theta, self._slack)[:n]

    def heights(self, theta: Array) -> Array:
        """Of the yields above zero, in units of their size and without factors."""
        wide = yields(self.enlarged, self.widen(theta, 0.0, 1.0), np)
        return wide[self.slots, self.model.nominal.shape[1] + np.arange(len(self.bins))] / _SHARE

    def _at(self, epsilon: float) -> Problem:
        problem = self.problem
        main = epsilon * self.main
        main[: len(problem.data.main)] = problem.data.main
        start = self.widen(problem.start, 0.0, 1.0)
        return Problem(
            data=Data(main, self.widen(problem.data.aux, 1.0, 1.0)),
            start=start,
            fixed=self.widen(problem.fixed, 0.0, 1.0),
            lower=self.widen(problem.lower, 0.0, -np.inf),
            upper=self.widen(problem.upper, np.inf, np.inf),
            guess=start,
        )

    def _starts(self) -> Iterator[Array]:
        """The guess, the start and points around it, each behind all walls."""
        problem, model = self.problem, self.model
        rng = np.random.default_rng(0)
        width = np.where(model.weight > 0, 1 / np.sqrt(np.maximum(model.weight, 1e-300)), 0.0)
        free = (model.weight == 0) & (model.tau == 0)
        yield self._inside(problem.guess)
        yield self._inside(problem.start)
        for _ in range(_STARTS):
            wide = problem.start + 2 * width * rng.normal(size=len(width))
            yield self._inside(np.where(free, problem.start * rng.uniform(0, 4, len(free)), wide))

    def _inside(self, theta: Array) -> Array:
        """The point, with its α nearer to the start if a yield is below zero; or with slack."""
        problem, begin = self.problem, self.model.blocks[0]
        theta = np.where(problem.fixed > 0, problem.start, theta)
        theta = np.clip(theta, problem.lower, problem.upper)
        theta = np.where(problem.fixed > 0, problem.start, theta)
        for share in (1.0, 0.5, 0.25, 0.0):
            near = theta.copy()
            near[:begin] = problem.start[:begin] + share * (theta - problem.start)[:begin]
            height = self.heights(near).min()
            if height > _FAR:
                return self.widen(near, 0.0, 1.0)
        return self.widen(near, 0.1 - min(height, 0.0), 1.0)


def _enlarged(model: Prepared, slots: Array, bins: Array, cost: float) -> Prepared:
    """The model with a pseudo-bin for each cell, and one for the cost of the slack."""
    n_slots, n_bins = model.nominal.shape
    n_channels = model.logs.shape[-1] // n_slots
    places = n_bins + np.arange(len(bins))
    share = _SHARE / sizes(model)[slots, bins]

    def wide(array: Array, factors: int = 0) -> Array:
        """With a slot for the slack and the additional bins."""
        more = [(0, 0)] * (array.ndim - 2) + [(0, 1), (0, len(bins) + 1)]
        if factors:
            more[0] = (0, factors)
        return np.pad(array, more)

    def wide_parameters(array: Array) -> Array:
        wide = np.insert(array, model.blocks[1], 0.0)
        return np.concatenate([wide, np.zeros(len(bins) + 1)])

    def wide_rows(array: Array) -> Array:
        return np.pad(array, ((0, 0), (0, 0), (0, n_channels)))

    nominal, shifts, mask = wide(model.nominal), wide(model.shifts), wide(model.factor_mask, 1)
    nominal[slots, places] = share * model.nominal[slots, bins]
    shifts[:, :, slots, places] = share * model.shifts[:, :, slots, bins]
    nominal[-1, places], nominal[-1, -1] = _SHARE, cost
    mask[-1, -1, n_bins:] = 1
    channel = model.channel_of_bin
    return replace(
        model,
        nominal=nominal,
        shifts=shifts,
        deviations=wide_rows(model.deviations),
        logs=wide_rows(model.logs),
        factor_mask=mask,
        carries_gamma=wide(model.carries_gamma),
        channel_of_bin=np.concatenate([channel, channel[bins], np.zeros(1)]),
        weight=wide_parameters(model.weight),
        tau=wide_parameters(model.tau),
    )


def _at_the_walls(walls: _Walls, end: Minimum, problem: Problem) -> Minimum:
    """The end of a search, moved from ε to zero."""
    model, data, theta = walls.model, walls.problem.data, walls.narrow(end.theta)
    at = evaluate(model, data, theta, curvature=False, xp=np)
    conditions = _Conditions.at(walls, end, problem)
    holds = walls.heights(theta) < _FAR
    while True:
        covariance, there, multipliers = conditions.solved(theta, holds)
        if not np.any(multipliers < 0):
            break
        holds[np.flatnonzero(holds)[np.argmin(multipliers)]] = False
    lies = (there >= walls.problem.lower) & (there <= walls.problem.upper)
    at_end = evaluate(model, data, there, curvature=False, xp=np)
    if (
        np.all(lies | (conditions.free == 0))
        and at_end.nll <= at.nll
        and not np.any(below_zero(model, at_end.cells))
    ):
        theta, at = there, at_end
    free = conditions.free
    return end._replace(theta=theta, nll=at.nll, free=free, covariance=covariance)


class _Conditions(NamedTuple):
    """The Karush-Kuhn-Tucker conditions near the end of a search: g = Σ λ ∂h/∂θ where h = 0.

    For the gradient g of the likelihood and the heights h of the walls that hold the fit.
    """

    walls: _Walls
    free: Array
    hessian: Array  # of the likelihood minus Σ λh, for the free parameters
    slopes: Array  # ∂h/∂θ [wall, free parameter]

    @classmethod
    def at(cls, walls: _Walls, end: Minimum, problem: Problem) -> _Conditions:
        n_bins = walls.model.nominal.shape[1]
        free = walls.narrow(end.free)
        kept = walls.narrow(np.arange(len(end.theta)))[free > 0].astype(int)
        parts = evaluate(walls.enlarged, problem.data, end.theta, xp=np).curvature
        assert parts is not None
        of_bins = np.arange(len(parts.stiffness)) < n_bins
        likelihood = parts._replace(stiffness=np.where(of_bins, parts.stiffness, 0.0))
        slopes = parts.bins[:, n_bins:-1].T / _SHARE
        slopes = np.pad(slopes, ((0, 0), (0, len(end.theta) - slopes.shape[1])))[:, kept]
        return cls(walls, free, dense_hessian(likelihood, np)[np.ix_(kept, kept)], slopes)

    def solved(self, theta: Array, holds: Array) -> tuple[Array, Array, Array]:
        """Covariance along the walls that hold; where the conditions are met, and λ there."""
        walls, n = self.walls, len(self.hessian)
        slopes, moving = self.slopes[holds], self.free > 0
        corner = np.zeros((len(slopes), len(slopes)))
        inverse = _inverse(np.block([[self.hessian, slopes.T], [slopes, corner]]))
        covariance = np.zeros((len(theta), len(theta)))
        covariance[np.ix_(moving, moving)] = inverse[:n, :n]
        np.fill_diagonal(covariance, np.maximum(np.diagonal(covariance), 0.0))  # but for rounding
        change = np.zeros(n + len(slopes))
        for _ in range(_CHORDS):
            problem = walls.problem
            at = evaluate(walls.model, problem.data, theta, curvature=False, xp=np)
            change = inverse @ -np.append(at.gradient[moving], walls.heights(theta)[holds])
            theta = theta.copy()
            theta[moving] += change[:n]
        return covariance, theta, -change[n:]


def _inverse(matrix: Any) -> Array:
    """The inverse of a symmetric matrix, scaled; without directions that nothing determines."""
    scale = 1 / np.sqrt(np.maximum(np.abs(matrix).max(axis=0, initial=0.0), 1e-300))
    inverse: Array = np.linalg.pinv(scale[:, None] * matrix * scale, rcond=1e-13, hermitian=True)
    return scale[:, None] * inverse * scale
