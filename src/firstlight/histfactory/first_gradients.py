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
from typing import Any

import numpy as np

from firstlight.histfactory.array_types import Array, DataSet, Number, Parameters
from firstlight.histfactory.engine import OnHost
from firstlight.histfactory.exclusion import (
    BANDS,
    CLs,
    HypothesisTest,
    Minima,
    Setup,
    cls,
    cls_of,
    require_possible_strength,
)
from firstlight.histfactory.fitting import FitResult, Fixed, as_fixed
from firstlight.histfactory.inference import (
    ROUNDING,
    Discovery,
    Ratio,
    RatioAndFits,
    discovery,
    discovery_of,
    likelihood_ratio,
    ratio_and_fits,
    require_statistic,
)
from firstlight.histfactory.internal_order import data_of, poi_position
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.limits import UpperLimit, by_calls, upper_limit
from firstlight.histfactory.linear_results import Linear, rule_of
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import Minimum, Status, WarmStart
from firstlight.histfactory.profile_slopes import (
    Slope,
    by_arrays,
    combined,
    no_slope,
    of_constants,
    of_floor,
    of_position,
    of_value,
    tail_slope,
    through_asimov,
)
from firstlight.histfactory.programs import Patience

# What a call takes in evaluations, and how long its program compiles compared with that of a fit.
RATIO = Patience(evaluations=18, compiling=3)
_CLS = Patience(evaluations=36, compiling=6)
LIMIT = Patience(evaluations=300, compiling=8)


# --- test statistics ------------------------------------------------------------------------------


@rule_of(likelihood_ratio)
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
    if init is not None or RATIO.is_over(engine.prepared):
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


@rule_of(discovery)
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
        free=_fit_mixing(ratio.free, np.array([1.0, 0.0, 1.0])),
        conditional=_fit_mixing(ratio.conditional, np.array([0.0, 1.0, 1.0])),
    )


def _bare(fit: FitResult | None) -> FitResult:
    """A fit as a program returns it, without its Hessian."""
    assert fit is not None
    return replace(fit, _hessian=None)


def _fit_mixing(fit: FitResult, of_nll: Array) -> FitResult:
    constant = dict.fromkeys(
        ("values", "edm", "iterations", "status_code", "is_free", "at_bound", "branches", "_free"),
        0.0,
    )
    return FitResult(nll=of_nll, _hessian=None, about=fit.about, **constant)


def root_slope(q: float) -> float:
    """Derivative of `inference.square_root`."""
    return 0.0 if q <= ROUNDING else 0.5 / math.sqrt(q)


def converged(fits: Iterable[Minimum]) -> bool:
    """Whether all of them converged."""
    return all(fit.status == int(Status.CONVERGED) for fit in fits)


# --- exclusion ------------------------------------------------------------------------------------


@rule_of(cls)
def _cls(
    model: Model,
    mu: Number,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    test_statistic: str = "qtilde",
) -> Linear | None:
    engine = OnHost(model)
    require_statistic(test_statistic)
    require_possible_strength(mu, test_statistic)
    if init is not None or np.ndim(mu) or _CLS.is_over(engine.prepared):
        return None
    with _CLS.spent(engine.prepared):
        setup = Setup(engine, data_of(model, data), as_fixed(model, fixed), None, test_statistic)
        test = HypothesisTest(setup)
        minima = test.minima_at(float(mu))
        if not converged(minima):
            return None
        result = cls_of(engine, float(mu), minima, test_statistic)
        strength = no_slope(engine.prepared)._replace(mu=np.ones(()))
        numbers = [*_statistic_slopes(test, float(mu), minima, result), strength]
        gradients = by_argument(model, data, fixed, numbers)
    mixing = _cls_mixing(result, test_statistic)
    by_number = {name: _with_zero(getattr(mixing, name)) for name in vars(mixing)}
    by_number["mu"] = np.array([0.0, 0.0, 1.0])
    return Linear(result, replace(mixing, **by_number), gradients)


def _with_zero(slopes: Array) -> Array:
    slopes = np.asarray(slopes)
    return np.concatenate([slopes, np.zeros((*slopes.shape[:-1], 1))], -1) if slopes.ndim else 0.0


def _statistic_slopes(
    test: HypothesisTest, mu: float, minima: Minima, result: CLs
) -> tuple[Slope, Slope]:
    """Of the statistic of the data, and of that of the Asimov data."""
    engine, prepared = test.engine, test.engine.prepared
    poi = poi_position(engine.model)
    free, null = test.setup.first_problems()
    near = minima.on_data.theta, minima.on_asimov.theta
    on_data, on_asimov = test.setup.problems_at(mu, test.asimov, near)
    of_q = no_slope(prepared)
    if result.q > 0:
        of_q = combined(
            (2.0, of_value(prepared, on_data, minima.on_data, poi)),
            (-2.0, of_value(prepared, free, minima.free)),
        )
    of_asimov = no_slope(prepared)
    if result.q_asimov > 0:
        value = of_value(prepared, on_asimov, minima.on_asimov, poi)
        value, by_null = through_asimov(prepared, minima.null.theta, test.asimov, value)
        moved = of_position(prepared, null, minima.null, by_null)
        moved.start[poi] = 0.0  # μ = 0 there, whatever is tested
        of_asimov = combined((2.0, value), (2.0, moved), (-2.0, of_floor(prepared)))
    return of_q, of_asimov


def _cls_mixing(result: CLs, test_statistic: str) -> CLs:
    """Derivatives of `exclusion.asymptotic_cls` and `expected_cls` by both statistics."""
    q, q_asimov = float(result.q), float(result.q_asimov)
    of_q, of_asimov = np.eye(2)
    by_root, by_root_asimov = root_slope(q) * of_q, root_slope(q_asimov) * of_asimov
    root, root_asimov = (math.sqrt(x) if x > ROUNDING else 0.0 for x in (q, q_asimov))
    distance, by_distance = root - root_asimov, by_root - by_root_asimov
    if test_statistic == "qtilde" and q > q_asimov:
        twice = 2 * root_asimov or 2.0
        distance = (q - q_asimov) / twice
        by_distance = (of_q - of_asimov) / twice
        by_distance -= distance / (twice / 2) * by_root_asimov
    by_clsb = tail_slope(distance + root_asimov) * (by_distance + by_root_asimov)
    by_clb = tail_slope(distance) * by_distance
    tails = [0.5 * math.erfc(-n / math.sqrt(2)) for n in BANDS]
    expected = [
        tail_slope(root_asimov - n) / tail * by_root_asimov
        for n, tail in zip(BANDS, tails, strict=True)
    ]
    return CLs(
        observed=(by_clsb - result.observed * by_clb) / result.clb,
        expected=np.stack(expected),
        mu=0.0,
        clsb=by_clsb,
        clb=by_clb,
        q=of_q,
        q_asimov=of_asimov,
        muhat=0.0,
        converged=0.0,
        branches=0.0,
    )


@rule_of(upper_limit)
def _upper_limit(
    model: Model,
    level: float = 0.05,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    test_statistic: str = "qtilde",
) -> Linear | None:
    level = float(level)
    if init is not None or not 0 < level < 1:
        return None
    found = limit_and_slopes(OnHost(model), level, data_of(model, data), fixed, test_statistic)
    if found is None:
        return None
    limit, slopes, by_level = found
    gradients = by_argument(model, data, fixed, [*slopes, no_slope(OnHost(model).prepared)])
    gradients["level"] = [np.array([*by_level, 1.0])]
    numbers = np.eye(len(slopes) + 1)
    mixing = UpperLimit(numbers[0], numbers[1:-1], numbers[-1], 0.0, 0.0)
    return Linear(limit, mixing, gradients)


def limit_and_slopes(
    engine: OnHost, level: float, data: Data, fixed: Fixed, test_statistic: str
) -> tuple[UpperLimit, list[Slope], list[float]] | None:
    """The limits, and the derivatives of all bands and by the level; None if there are none.

    A limit μ solves h(μ) = ln(CLs/level) = 0, so its derivatives are those of h over -dh/dμ.
    """
    require_statistic(test_statistic)
    if LIMIT.is_over(engine.prepared):
        return None
    with LIMIT.spent(engine.prepared):
        setup = Setup(engine, data, as_fixed(engine.model, fixed), None, test_statistic)
        test = HypothesisTest(setup)
        limit = by_calls(test, level)
        if not limit.converged:
            return None
        roots = [limit.observed, *limit.expected]
        heights = [_height_slope(test, float(mu), band) for band, mu in enumerate(roots)]
    slopes = [combined((-1 / float(h.mu), h))._replace(mu=np.zeros(())) for h in heights]
    return limit, slopes, [1 / (level * float(h.mu)) for h in heights]


def _height_slope(test: HypothesisTest, mu: float, band: int) -> Slope:
    """Of ln CLs at a signal strength: band 0 is the observed one, the others are expected."""
    minima, statistic = test.minima_at(mu), test.setup.test_statistic
    result = cls_of(test.engine, mu, minima, statistic)
    mixing = _cls_mixing(result, statistic)
    by_q, by_asimov = np.asarray(mixing.expected[band - 1] if band else mixing.observed)
    value = float(result.expected[band - 1] if band else result.observed)
    of_q, of_asimov = _statistic_slopes(test, mu, minima, result)
    return combined((by_q / value, of_q), (by_asimov / value, of_asimov))


# --- arguments ------------------------------------------------------------------------------------


def by_argument(
    model: Model, data: DataSet, fixed: Fixed, slopes: Sequence[Slope]
) -> dict[str, list[Array]]:
    """Derivatives with respect to the model, the data and μ, stacked over numbers."""
    own: Any = np.ones(len(slopes[0].start))  # fixed parameters at the model's own value
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
        aux: Any = slope.aux.copy()
        aux[where] = 0.0
        slope = slope._replace(aux=aux)
    return slope, by_data
