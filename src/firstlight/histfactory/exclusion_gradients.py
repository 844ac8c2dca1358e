"""First gradients of CLs and upper limits in NumPy: see `first_gradients`."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from firstlight.histfactory.array_types import Array, DataSet, Number, Parameters
from firstlight.histfactory.engine import OnHost
from firstlight.histfactory.exclusion import (
    BANDS,
    CLs,
    HypothesisTest,
    Minima,
    Setup,
    cls_of,
    require_possible_strength,
)
from firstlight.histfactory.first_gradients import by_argument, converged, root_slope
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.hypotheses import ROUNDING, require_statistic
from firstlight.histfactory.internal_order import data_of, poi_position
from firstlight.histfactory.likelihood import Data
from firstlight.histfactory.limits import UpperLimit, find_limits
from firstlight.histfactory.linear_results import Linear, rule
from firstlight.histfactory.model import Model
from firstlight.histfactory.profile_slopes import (
    Slope,
    slope_of_floor,
    slope_of_position,
    slope_of_value,
    tail_slope,
    through_asimov,
    weighted_sum,
    zero_slope,
)
from firstlight.histfactory.programs import Patience

_CLS = Patience(evaluations=36, compiling=6)
LIMIT = Patience(evaluations=300, compiling=8)


@rule(_CLS)
def cls(
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
    if init is not None or np.ndim(mu):
        return None
    with _CLS.spent(engine.prepared):
        setup = Setup(engine, data_of(model, data), as_fixed(model, fixed), None, test_statistic)
        test = HypothesisTest(setup)
        minima = test.minima_at(float(mu))
        if not converged(minima):
            return None
        result = cls_of(engine, float(mu), minima, test_statistic)
        strength = zero_slope(engine.prepared)._replace(mu=np.ones(()))
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
    """Slopes of the test statistics of the data and of the Asimov data."""
    engine, prepared = test.engine, test.engine.prepared
    poi = poi_position(engine.model)
    free, null = test.setup.first_problems()
    near = minima.on_data.theta, minima.on_asimov.theta
    on_data, on_asimov = test.setup.problems_at(mu, test.asimov, near)
    of_q = zero_slope(prepared)
    if result.q > 0:
        of_q = weighted_sum(
            (2.0, slope_of_value(prepared, on_data, minima.on_data, poi)),
            (-2.0, slope_of_value(prepared, free, minima.free)),
        )
    of_asimov = zero_slope(prepared)
    if result.q_asimov > 0:
        value = slope_of_value(prepared, on_asimov, minima.on_asimov, poi)
        value, by_null = through_asimov(prepared, minima.null.theta, test.asimov, value)
        moved = slope_of_position(prepared, null, minima.null, by_null)
        moved.start[poi] = 0.0  # μ = 0 there, whatever is tested
        of_asimov = weighted_sum((2.0, value), (2.0, moved), (-2.0, slope_of_floor(prepared)))
    return of_q, of_asimov


def _cls_mixing(result: CLs, test_statistic: str) -> CLs:
    """Derivatives of `asymptotic_cls` and `expected_cls` with respect to both statistics."""
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
        status_code=0.0,
        branches=0.0,
    )


@rule(LIMIT)
def upper_limit(
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
    gradients = by_argument(model, data, fixed, [*slopes, zero_slope(OnHost(model).prepared)])
    gradients["level"] = [np.array([*by_level, 1.0])]
    numbers = np.eye(len(slopes) + 1)
    mixing = UpperLimit(numbers[0], numbers[1:-1], numbers[-1], 0.0, 0.0)
    return Linear(limit, mixing, gradients)


def limit_and_slopes(
    engine: OnHost, level: float, data: Data, fixed: Fixed, test_statistic: str
) -> tuple[UpperLimit, list[Slope], list[float]] | None:
    """The limits, the slopes of each, and their derivatives with respect to the level.

    A limit μ solves h(μ) = ln(CLs/level) = 0, so its derivatives are those of h over -dh/dμ.
    Returns None if the search did not converge.
    """
    require_statistic(test_statistic)
    with LIMIT.spent(engine.prepared):
        setup = Setup(engine, data, as_fixed(engine.model, fixed), None, test_statistic)
        test = HypothesisTest(setup)
        limit = find_limits(test, level)
        if not limit.converged:
            return None
        roots = [limit.observed, *limit.expected]
        heights = [_height_slope(test, float(mu), band) for band, mu in enumerate(roots)]
    slopes = [weighted_sum((-1 / float(h.mu), h))._replace(mu=np.zeros(())) for h in heights]
    return limit, slopes, [1 / (level * float(h.mu)) for h in heights]


def _height_slope(test: HypothesisTest, mu: float, band: int) -> Slope:
    """The slope of ln CLs at a signal strength. Band 0 is observed, 1 to 5 are expected."""
    minima, statistic = test.minima_at(mu), test.setup.test_statistic
    result = cls_of(test.engine, mu, minima, statistic)
    mixing = _cls_mixing(result, statistic)
    by_q, by_asimov = np.asarray(mixing.expected[band - 1] if band else mixing.observed)
    value = float(result.expected[band - 1] if band else result.observed)
    of_q, of_asimov = _statistic_slopes(test, mu, minima, result)
    return weighted_sum((by_q / value, of_q), (by_asimov / value, of_asimov))
