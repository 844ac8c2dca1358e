"""The first gradients of tests and limits, by NumPy: rules for `linear_results`.

Compiling the gradient of a test takes as long as dozens of them in NumPy, so the first ones are
computed there, from the same fits; `programs` explains when a program takes over. A rule answers
None, and leaves the call to a program, if a fit did not converge, if starting values are given, or
once compiling pays.
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
    discovery,
    discovery_of,
    likelihood_ratio,
    ratio_and_fits,
)
from firstlight.histfactory.internal_order import poi_position
from firstlight.histfactory.linear_results import Linear, rule_of
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Status, WarmStart
from firstlight.histfactory.profile_slopes import (
    Slope,
    by_arrays,
    of_constants,
    of_value,
    tail_slope,
)
from firstlight.histfactory.programs import Patience

RATIO = Patience(evaluations=18, compiling=3)


@rule_of(likelihood_ratio, RATIO)
def _likelihood_ratio(
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
        constants = of_constants(engine.prepared, made.problems[0].data)
        numbers = [*value_slopes(engine, made), constants]
        gradients = by_argument(model, data, fixed, numbers)
    free, conditional = (_bare(fit) for fit in (made.ratio.free, made.ratio.conditional))
    ratio = replace(made.ratio, free=free, conditional=conditional)
    return Linear(ratio, _ratio_mixing(ratio), gradients)


@rule_of(discovery, RATIO)
def _discovery(
    model: Model,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    warm_start: WarmStart | None = None,
) -> Linear | None:
    linear = _likelihood_ratio(model, None, "q0", data, fixed, init, warm_start)
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
    """Of the likelihoods at the minima; only the last of them is at the tested strength."""
    pairs = list(zip(made.problems, made.found, strict=True))
    before = [of_value(engine.prepared, *pair) for pair in pairs[:-1]]
    return [*before, of_value(engine.prepared, *pairs[-1], poi_position(engine.model))]


def _ratio_mixing(ratio: Ratio) -> Ratio:
    """Derivatives by the likelihoods of the free and the conditional fit, and by the constants."""
    assert ratio.free is not None
    return Ratio(
        q=np.array([-2.0, 2.0, 0.0]) * (ratio.q > 0),
        muhat=0.0,
        free=fit_mixing(ratio.free, np.array([1.0, 0.0, 1.0])),
        conditional=fit_mixing(ratio.conditional, np.array([0.0, 1.0, 1.0])),
    )


def _bare(fit: FitResult | None) -> FitResult:
    """A fit as a program returns it, without its Hessian."""
    assert fit is not None
    return replace(fit, _hessian=None)


def fit_mixing(fit: FitResult, of_nll: Array) -> FitResult:
    """Derivatives of a fit whose likelihood alone has any."""
    constant = dict.fromkeys(
        ("values", "edm", "iterations", "status_code", "is_free", "at_bound", "branches", "_free"),
        0.0,
    )
    return FitResult(nll=of_nll, _hessian=None, about=fit.about, **constant)


def root_slope(q: float) -> float:
    """Derivative of `hypotheses.square_root`."""
    return 0.0 if q <= ROUNDING else 0.5 / math.sqrt(q)


def converged(fits: Iterable[Minimum]) -> bool:
    """Whether all of them converged."""
    return all(fit.status == int(Status.CONVERGED) for fit in fits)


def by_argument(
    model: Model, data: DataSet, fixed: Fixed, slopes: Sequence[Slope]
) -> dict[str, list[Array]]:
    """Derivatives with respect to the model, the data and μ, stacked over numbers."""
    own: Array = np.ones(len(slopes[0].start))  # fixed parameters at the model's own value
    for name, value in as_fixed(model, fixed).items():
        if not isinstance(value, bool):
            own[model._order[model.index(name)]] = 0.0
    given = [_by_data(model, data, slope) for slope in slopes]
    arrays = [by_arrays(model, slope, own) for slope, _ in given]
    found = {
        "model": [np.stack([a[name] for a in arrays]) for name in arrays[0]],
        "mu": [np.stack([slope.mu for slope in slopes])],
    }
    if data is not None:
        found["data"] = [np.stack([by_data for _, by_data in given])]
    return found


def _by_data(model: Model, data: DataSet, slope: Slope) -> tuple[Slope, Array]:
    """The derivative with respect to data that were given; the rest are the model's own."""
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
