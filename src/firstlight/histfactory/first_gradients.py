"""First gradients of tests in NumPy: rules for `linear_results`.

Compiling the gradient of a test takes as long as dozens of them in NumPy, so NumPy computes the
first ones from the same fits; `programs` explains when a compiled program takes over. A rule
returns None, which leaves the call to a program, if a fit did not converge or starting values are
given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from firstlight.histfactory.array_types import Array, DataSet, Number, Parameters
from firstlight.histfactory.engine import OnHost
from firstlight.histfactory.fitting import FitResult, Fixed, as_fixed
from firstlight.histfactory.hypotheses import ROUNDING
from firstlight.histfactory.inference import (
    Discovery,
    Ratio,
    RatioAndFits,
    discovery_of,
    ratio_and_fits,
)
from firstlight.histfactory.internal_order import poi_position
from firstlight.histfactory.linear_results import Linear, rule
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Status, WarmStart
from firstlight.histfactory.profile_slopes import (
    Slope,
    slope_of_constants,
    slope_of_value,
    slopes_by_array,
    tail_slope,
)
from firstlight.histfactory.programs import Patience

RATIO = Patience(evaluations=18, compiling=3)


@rule(RATIO)
def likelihood_ratio(
    model: Model,
    mu: Number | None,
    statistic: str,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    warm_start: WarmStart | None = None,
) -> Linear | None:
    engine = OnHost(model)
    if init is not None:
        return None
    with RATIO.spent(engine.prepared):
        made = ratio_and_fits(engine, mu, statistic, data, fixed, None, warm_start)
        if not converged(made.found):
            return None
        constants = slope_of_constants(engine.prepared, made.problems[0].data)
        numbers = [*value_slopes(engine, made), constants]
        gradients = by_argument(model, data, fixed, numbers)
    free, conditional = (_bare(fit) for fit in (made.ratio.free, made.ratio.conditional))
    ratio = replace(made.ratio, free=free, conditional=conditional)
    return Linear(ratio, _ratio_mixing(ratio), gradients)


@rule(RATIO)
def discovery(
    model: Model,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    warm_start: WarmStart | None = None,
) -> Linear | None:
    linear = likelihood_ratio.compute(model, None, "q0", data, fixed, init, warm_start)
    if linear is None:
        return None
    found, slopes = discovery_of(OnHost(model), linear.result), linear.mixing
    by_q = root_slope(found.q0)
    mixing = Discovery(
        q0=slopes.q,
        z0=by_q * slopes.q,
        p0=tail_slope(found.z0) * by_q * slopes.q,
        muhat=0.0,
        free=slopes.free,
        conditional=slopes.conditional,
    )
    return Linear(found, mixing, linear.gradients)


def value_slopes(engine: OnHost, made: RatioAndFits) -> list[Slope]:
    """Slopes of the likelihoods at the minima; only the last minimum is at the tested μ."""
    pairs = list(zip(made.problems, made.found, strict=True))
    before = [slope_of_value(engine.prepared, *pair) for pair in pairs[:-1]]
    return [*before, slope_of_value(engine.prepared, *pairs[-1], poi_position(engine.model))]


def _ratio_mixing(ratio: Ratio) -> Ratio:
    """Derivatives with respect to the two likelihoods (free, conditional) and the constants."""
    assert ratio.free is not None
    return Ratio(
        q=np.array([-2.0, 2.0, 0.0]) * (ratio.q > 0),
        muhat=0.0,
        free=fit_mixing(ratio.free, np.array([1.0, 0.0, 1.0])),
        conditional=fit_mixing(ratio.conditional, np.array([0.0, 1.0, 1.0])),
    )


def _bare(fit: FitResult | None) -> FitResult:
    """The fit without its Hessian, as a compiled program returns it."""
    assert fit is not None
    return replace(fit, _hessian=None)


def fit_mixing(fit: FitResult, of_nll: Array) -> FitResult:
    """Derivatives of a fit whose parameters are constant: only its likelihood varies."""
    constant = dict.fromkeys(
        ("values", "edm", "iterations", "status_code", "is_free", "at_bound", "branches", "_free"),
        0.0,
    )
    return FitResult(nll=of_nll, _hessian=None, about=fit.about, **constant)


def root_slope(q: float) -> float:
    """Derivative of `hypotheses.square_root`."""
    return 0.0 if q <= ROUNDING else 0.5 / math.sqrt(q)


def converged(fits: Iterable[Minimum]) -> bool:
    return all(fit.status == int(Status.CONVERGED) for fit in fits)


def by_argument(
    model: Model, data: DataSet, fixed: Fixed, slopes: Sequence[Slope]
) -> dict[str, list[Array]]:
    """Derivatives with respect to the model, the data and μ, stacked over the numbers s."""
    own: Array = np.ones(len(slopes[0].start))  # 1: a fixed parameter stays at the model's init
    for name, value in as_fixed(model, fixed).items():
        if not isinstance(value, bool):
            own[model._order[model.index(name)]] = 0.0
    given = [_by_data(model, data, slope) for slope in slopes]
    arrays = [slopes_by_array(model, slope, own) for slope, _ in given]
    found = {
        "model": [np.stack([a[name] for a in arrays]) for name in arrays[0]],
        "mu": [np.stack([slope.mu for slope in slopes])],
    }
    if data is not None:
        found["data"] = [np.stack([by_data for _, by_data in given])]
    return found


def _by_data(model: Model, data: DataSet, slope: Slope) -> tuple[Slope, Array]:
    """Split off the derivative with respect to given data; what remains is the model's data."""
    n_main = model.n_bins
    by_data = slope.main[:n_main]
    if data is None:
        return slope, by_data
    slope = slope._replace(main=np.zeros_like(slope.main))
    if np.shape(data)[-1] > n_main:
        where = model._order[model._constrained]
        by_data = np.concatenate([by_data, slope.aux[where]])
        aux: Array = slope.aux.copy()
        aux[where] = 0.0
        slope = slope._replace(aux=aux)
    return slope, by_data
