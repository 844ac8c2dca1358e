"""Repeated fits: profile scans with their intervals, and the impact of every nuisance parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from firstlight.histfactory.argument_checks import ModelError, as_numbers
from firstlight.histfactory.array_types import DataSet, Number
from firstlight.histfactory.devices import Devices
from firstlight.histfactory.engine import Eager, Progress, eager_engine
from firstlight.histfactory.fitting import FitResult, Fixed, as_fixed, fit, problem_of
from firstlight.histfactory.hypotheses import DISAGREEMENT
from firstlight.histfactory.internal_order import data_of, poi_position, to_internal, to_public
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.newton import Problem, is_settled
from firstlight.histfactory.precision import in_float64

#: How often impacts are computed again about a lower best fit.
_ATTEMPTS = 3


@dataclass(frozen=True, eq=False)
class Scan:
    """The likelihood along one parameter, all others fitted."""

    parameter: str
    values: Floats
    nll: Floats
    twice_delta_nll: Floats  # above the best fit
    status_code: Floats  # see `Status`
    branches: Floats  # number of minima found at each point; the lowest is used
    best: FitResult


@dataclass(frozen=True, eq=False)
class Impacts:
    """The impact of each nuisance parameter on the parameter of interest, largest first.

    An impact is the change of the fitted POI when one parameter is fixed above (`up`) or below
    (`down`) its best fit by its uncertainty after the fit (`post`) or before it (`pre`; NaN for
    parameters without a constraint), within its bounds.
    """

    poi: str
    best: FitResult
    names: tuple[str, ...]
    values: Floats  # best fit
    uncertainties: Floats  # after the fit
    pulls: Floats  # (best fit - constraint's centre) / constraint's width; NaN without constraint
    constraints: Floats  # uncertainty after / before
    post_up: Floats
    post_down: Floats
    pre_up: Floats
    pre_down: Floats
    not_converged: int  # of the fits behind these numbers
    branches: int  # the largest number of minima found by one of the fits


@dataclass(frozen=True, eq=False)
class ScanFits:
    """The common part of a scan's fits; results do not depend on how points are divided."""

    model: Model
    data: DataSet
    fixed: dict[str, bool | Number]
    parameter: str
    values: Floats
    best: FitResult
    compiled: bool  # whether fits run compiled or in NumPy
    require_positive: bool = False

    def fit(
        self, begin: int, end: int, progress: Progress | None = None, devices: Devices = None
    ) -> tuple[Floats, Floats, Floats]:
        """Likelihood, status code and number of minima at the points `begin` to `end`."""
        model, positive = self.model, self.require_positive
        engine = eager_engine(model, self.compiled, devices, require_positive=positive)
        base = problem_of(engine, data_of(model, self.data), self.fixed)
        near, index = to_internal(model, self.best.values), model.index(self.parameter)
        points = [_held(model, base, near, index, v) for v in self.values[begin:end]]
        found = engine.fits(points, progress)
        nll = np.array([float(f.nll) for f in found]) + engine.constants(base.data)
        status = np.array([int(f.status) for f in found])
        return nll, status, np.array([int(f.branches) for f in found])

    def result(self, nll: Floats, status: Floats, branches: Floats) -> Scan:
        """The scan, from what `fit` returned for all points.

        The best fit is made again where a point is lower: its minimum is open to the best fit.
        """
        best, lowest = self.best, int(np.argmin(np.where(is_settled(status), nll, np.inf)))
        if nll[lowest] < best.nll - DISAGREEMENT:
            held = {**self.fixed, self.parameter: float(self.values[lowest])}
            refit = partial(fit, self.model, self.data, require_positive=self.require_positive)
            best = refitted(self.model, best, refit(held), partial(refit, self.fixed))
        return Scan(
            parameter=self.parameter,
            values=self.values,
            nll=nll,
            twice_delta_nll=2 * (nll - best.nll),
            status_code=status,
            branches=branches,
            best=best,
        )


def refitted(
    model: Model, best: FitResult, lower: FitResult, refit: Callable[..., FitResult]
) -> FitResult:
    """The best fit, made again from a fit with a parameter held that is lower."""
    again = refit(init=np.clip(lower.values, model.lower, model.upper))
    return again if again.nll < best.nll else best


@in_float64
def scan(
    model: Model,
    parameter: str | None = None,
    values: Sequence[float] | None = None,
    data: DataSet = None,
    fixed: Fixed = None,
    *,
    points: int = 41,
    width: float = 3.0,
    progress: Progress | None = None,
    devices: Devices = None,
    require_positive: bool = False,
) -> Scan:
    """Fit with `parameter` (default: the POI) fixed at each of `values`.

    The default is `points` values within ± `width` standard deviations of the best fit and within
    the parameter's bounds.

    devices: JAX devices, or their number, over which the fits are divided; default: all of this
        process, if there are enough fits.
    require_positive: as for `fit`.
    """
    settings: dict[str, Any] = {"points": points, "width": width}
    settings["require_positive"] = require_positive
    job = plan_scan(model, parameter, values, data, fixed, **settings)
    return job.result(*job.fit(0, len(job.values), progress, devices))


@in_float64
def plan_scan(
    model: Model,
    parameter: str | None = None,
    values: Sequence[float] | None = None,
    data: DataSet = None,
    fixed: Fixed = None,
    *,
    points: int = 41,
    width: float = 3.0,
    require_positive: bool = False,
) -> ScanFits:
    """The scan that `scan` makes with these arguments, with only its best fit made yet."""
    name = model.parameter_names[model.poi_index] if parameter is None else parameter
    index = model.index(name)
    fixed = as_fixed(model, fixed)
    best = fit(model, data, fixed, require_positive=require_positive)
    if values is None:
        middle, sigma = best.values[index], best.uncertainties[name]
        if not sigma > 0:
            raise ModelError(
                f"{name!r} is fixed, or held at {middle:g} by a bound, so the fit gives no range "
                "to scan. Give one: values=[...], or --from and --to."
            )
        grid = np.linspace(
            max(middle - width * sigma, float(model.lower[index])),
            min(middle + width * sigma, float(model.upper[index])),
            points,
        )
    else:
        grid = as_numbers(values, "the values to scan")
    if grid.ndim != 1 or not len(grid) or not np.all(np.isfinite(grid)):
        raise ModelError("the values to scan must be a list of finite numbers.")
    compiled = Eager(model).deciding(len(grid)).compiled is True
    return ScanFits(model, data, fixed, name, grid, best, compiled, require_positive)


@in_float64
def impacts(
    model: Model,
    data: DataSet = None,
    fixed: Fixed = None,
    *,
    parameters: Sequence[str] | None = None,
    progress: Progress | None = None,
    devices: Devices = None,
    require_positive: bool = False,
) -> Impacts:
    """Refit with each nuisance parameter moved by its uncertainty; rank them by the effect.

    devices: as for `scan`. require_positive: as for `fit`.
    """
    fixed = as_fixed(model, fixed)
    engine = eager_engine(model, devices=devices, require_positive=require_positive)
    refit = partial(fit, model, data, fixed, require_positive=require_positive)
    best = refit()
    for _ in range(_ATTEMPTS):
        found, lower = _impacts_about(best, engine, data, fixed, parameters, progress)
        if lower is None:
            break
        # A fit with a parameter held is lower than the best fit, which was in another minimum.
        best = refit(init=np.clip(lower, model.lower, model.upper))
    return found


def _impacts_about(
    best: FitResult,
    engine: Eager,
    data: DataSet,
    fixed: dict[str, bool | Number],
    parameters: Sequence[str] | None,
    progress: Progress | None,
) -> tuple[Impacts, Floats | None]:
    """The impacts about a best fit, and the parameters of a lower fit if there is one."""
    model = engine.model
    sigma = np.array(list(best.uncertainties.values()))
    names = [n for n in (parameters or model.parameter_names) if n != model.poi]
    indices = [i for i in (model.index(n) for n in names) if best.is_free[i] > 0 and sigma[i] > 0]
    base = problem_of(engine, data_of(model, data), fixed)
    width, centre = constraint_widths(model, base.data)
    # One column each: up and down by the uncertainty after the fit, then by that before it.
    shifts = np.stack([sigma, -sigma, width, -width])[:, indices]
    known = np.isfinite(shifts)
    targets = np.clip(best.values[indices] + shifts, model.lower[indices], model.upper[indices])
    near = to_internal(model, best.values)
    problems = [
        _held(model, base, near, indices[i], targets[side, i])
        for i, side in zip(*np.nonzero(known.T), strict=True)
    ]
    found = engine.fits(problems, progress)
    constants = engine.constants(base.data)
    moved = np.full(shifts.T.shape, np.nan)
    moved[known.T] = [float(f.theta[poi_position(model)]) for f in found]
    post_up, post_down, pre_up, pre_down = moved.T - best.values[model.poi_index]
    order = np.argsort(-np.maximum(np.abs(post_up), np.abs(post_down)), kind="stable")
    chosen = np.array(indices, int)[order]
    below = [
        f for f in found if is_settled(f.status) and f.nll + constants < best.nll - DISAGREEMENT
    ]
    lowest = min(below, key=lambda f: float(f.nll), default=None)
    impacts = Impacts(
        poi=model.parameter_names[model.poi_index],
        best=best,
        names=tuple(model.parameter_names[i] for i in chosen),
        values=best.values[chosen],
        uncertainties=sigma[chosen],
        pulls=(best.values[chosen] - centre[chosen]) / width[chosen],
        constraints=sigma[chosen] / width[chosen],
        post_up=post_up[order],
        post_down=post_down[order],
        pre_up=pre_up[order],
        pre_down=pre_down[order],
        not_converged=sum(not is_settled(f.status) for f in found),
        branches=max([best.branches, *(int(f.branches) for f in found)]),
    )
    return impacts, None if lowest is None else to_public(model, lowest.theta)


def constraint_widths(model: Model, data: Data | None = None) -> tuple[Floats, Floats]:
    """Width and centre of every parameter's constraint in the data; NaN if unconstrained."""
    structure, arrays = model.about.structure, model.arrays
    sigma, tau = np.asarray(arrays.sigma), np.asarray(arrays.tau)
    auxdata = np.asarray(arrays.auxdata if data is None else data.aux)
    width = np.where(structure.normal > 0, sigma, np.nan)
    width = np.where(structure.poisson > 0, 1 / np.sqrt(tau), width)
    centre = np.where(structure.normal > 0, auxdata, np.nan)
    centre = np.where(structure.poisson > 0, auxdata / tau, centre)
    return to_public(model, width), to_public(model, centre)


def _held(model: Model, base: Problem, near: Floats, index: int, value: float) -> Problem:
    """The problem with one parameter fixed, started near the best fit."""
    start, fixed = np.array(base.start), np.array(base.fixed)
    position = int(model.about.structure.positions[index])
    start[position], fixed[position] = value, 1.0
    return base._replace(start=start, fixed=fixed).starting_at(near)


def interval(scan: Scan, height: float = 1.0) -> tuple[float | None, float | None]:
    """Where 2ΔNLL reaches `height` below and above the best fit; None if the scan ends before.

    Interpolates √2ΔNLL, with the sign of the side, linearly between points: exact for a parabola.
    """
    best = float(scan.best.parameters[scan.parameter])
    good = is_settled(scan.status_code) & np.isfinite(scan.twice_delta_nll)
    values = scan.values[good]
    order = np.argsort(values)
    values = values[order]
    roots = np.sqrt(np.maximum(scan.twice_delta_nll[good][order], 0.0))
    sides = (np.append(values[values < best], best)[::-1], np.append(best, values[values > best]))
    heights = (np.append(roots[values < best], 0.0)[::-1], np.append(0.0, roots[values > best]))
    lower, upper = (_crossing(v, h, height**0.5) for v, h in zip(sides, heights, strict=True))
    return lower, upper


def _crossing(values: Floats, heights: Floats, level: float) -> float | None:
    """The first point where `heights`, which begins at zero, reaches the level."""
    above = np.flatnonzero(heights >= level)
    if not len(above):
        return None
    i = int(above[0])
    share = (level - heights[i - 1]) / (heights[i] - heights[i - 1])
    return float(values[i - 1] + share * (values[i] - values[i - 1]))
