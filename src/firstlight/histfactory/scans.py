"""Repeated fits: profile scans, and the impact of every nuisance parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstlight.histfactory.array_types import ArrayLike
from firstlight.histfactory.engine import Eager, Progress
from firstlight.histfactory.fitting import FitResult, Fixed, as_fixed, fit, problem_of
from firstlight.histfactory.internal_order import data_of, to_internal, to_public
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.model import Floats, Model, ModelError, as_numbers
from firstlight.histfactory.newton import Problem
from firstlight.histfactory.precision import in_float64


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


@in_float64
def scan(
    model: Model,
    parameter: str | None = None,
    values: Sequence[float] | None = None,
    data: ArrayLike | None = None,
    fixed: Fixed = None,
    *,
    points: int = 41,
    width: float = 3.0,
    progress: Progress | None = None,
) -> Scan:
    """Fit with `parameter` (default: the POI) fixed at each of `values`.

    The default is `points` values within ± `width` standard deviations of the best fit and within
    the parameter's bounds.
    """
    name = model.parameter_names[model.poi_index] if parameter is None else parameter
    index = model.index(name)
    fixed = as_fixed(model, fixed)
    best = fit(model, data, fixed)
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
    engine = Eager(model)
    base = problem_of(engine, data_of(model, data), fixed)
    near = to_internal(model, best.values)
    found = engine.fits([_held(model, base, near, {index: v}) for v in grid], progress)
    nll = np.array([float(f.nll) for f in found]) + engine.constants(base.data)
    return Scan(
        parameter=name,
        values=grid,
        nll=nll,
        twice_delta_nll=2 * (nll - best.nll),
        status_code=np.array([int(f.status) for f in found]),
        branches=np.array([int(f.branches) for f in found]),
        best=best,
    )


@in_float64
def impacts(
    model: Model,
    data: ArrayLike | None = None,
    fixed: Fixed = None,
    *,
    parameters: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Impacts:
    """Refit with each nuisance parameter moved by its uncertainty; rank them by the effect."""
    poi = model.poi_index
    fixed = as_fixed(model, fixed)
    best = fit(model, data, fixed)
    sigma = np.array(list(best.uncertainties.values()))
    names = [n for n in (parameters or model.parameter_names) if n != model.poi]
    indices = [i for i in (model.index(n) for n in names) if best.is_free[i] > 0 and sigma[i] > 0]
    engine = Eager(model)
    base = problem_of(engine, data_of(model, data), fixed)
    near = to_internal(model, best.values)
    width, centre = constraint_widths(model, base.data)
    shifts = [
        (i, s)
        for i in indices
        for s in (sigma[i], -sigma[i], width[i], -width[i])
        if np.isfinite(s)
    ]
    lower, upper = model.lower, model.upper
    problems = [
        _held(model, base, near, {i: np.clip(best.values[i] + s, lower[i], upper[i])})
        for i, s in shifts
    ]
    found = engine.fits(problems, progress)
    moved = {
        (i, s): float(to_public(model, f.theta)[poi]) - float(best.values[poi])
        for (i, s), f in zip(shifts, found, strict=True)
    }
    columns = {
        "post_up": [moved[i, sigma[i]] for i in indices],
        "post_down": [moved[i, -sigma[i]] for i in indices],
        "pre_up": [moved.get((i, width[i]), np.nan) for i in indices],
        "pre_down": [moved.get((i, -width[i]), np.nan) for i in indices],
    }
    size = [
        max(abs(u), abs(d)) for u, d in zip(columns["post_up"], columns["post_down"], strict=True)
    ]
    order = np.argsort(-np.array(size), kind="stable") if size else np.zeros(0, int)
    chosen = np.array(indices, int)[order]
    return Impacts(
        poi=model.parameter_names[poi],
        best=best,
        names=tuple(model.parameter_names[i] for i in chosen),
        values=best.values[chosen],
        uncertainties=sigma[chosen],
        pulls=(best.values[chosen] - centre[chosen]) / width[chosen],
        constraints=sigma[chosen] / width[chosen],
        not_converged=sum(int(f.status) != 0 for f in found),
        branches=max([best.branches, *(int(f.branches) for f in found)]),
        **{name: np.array(values)[order] for name, values in columns.items()},
    )


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


def _held(model: Model, base: Problem, near: Any, held: dict[int, float]) -> Problem:
    """The problem with some parameters fixed, started near the best fit."""
    start, fixed = np.array(base.start), np.array(base.fixed)
    for index, value in held.items():
        slot = int(model.about.structure.positions[index])
        start[slot], fixed[slot] = value, 1.0
    return base._replace(start=start, fixed=fixed).starting_at(near)
