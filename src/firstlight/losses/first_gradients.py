"""First gradients of the losses in NumPy: `histfactory.first_gradients` for templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from firstlight.histfactory import templates
from firstlight.histfactory.array_types import Array, ArrayLike, Number
from firstlight.histfactory.engine import OnHost
from firstlight.histfactory.exclusion_gradients import limit_and_slopes
from firstlight.histfactory.first_gradients import (
    RATIO,
    by_argument,
    root_slope,
    value_slopes,
)
from firstlight.histfactory.fitting import Fixed
from firstlight.histfactory.hypotheses import square_root
from firstlight.histfactory.inference import (
    RatioAndFits,
    expected_parameters,
    expected_ratio_and_fit,
    ratio_and_fits,
)
from firstlight.histfactory.internal_order import data_of
from firstlight.histfactory.linear_results import Linear
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import WarmStart
from firstlight.histfactory.profile_slopes import (
    Slope,
    slope_of_floor,
    through_asimov,
    weighted_sum,
    zero_slope,
)
from firstlight.histfactory.programs import Patience
from firstlight.losses.state import Keys, State, Values, state_of


class Statistic(NamedTuple):
    """A test statistic, how its fits went, and its derivatives."""

    q: float
    state: State
    gradient: list[Array]  # with respect to every template
    by_mu: Array


def statistic(
    model: Model,
    keys: Keys,
    values: Values,
    patience: Patience,
    *,
    objective: str,
    mu: Number | None,
    test_statistic: str,
    warm_start: WarmStart | None,
    data: ArrayLike | None = None,
    fixed: Fixed = None,
    variations: str = "absolute",
) -> Statistic:
    """A statistic of a model with other templates, without checks of the arguments."""
    given = dict(zip(keys, values, strict=True))
    engine = OnHost(templates.exchange(model, given, variations))
    with patience.spent(engine.prepared):
        if objective == "observed":
            made = ratio_and_fits(engine, mu, test_statistic, data, fixed, None, warm_start)
            free, conditional = value_slopes(engine, made)
            slope = weighted_sum((2.0, conditional), (-2.0, free))
        else:
            tested, true = (0.0, 1.0) if mu is None else (mu, 0.0)
            theta = expected_parameters(engine.model, true, fixed)
            made = expected_ratio_and_fit(engine, tested, true, theta, fixed, warm_start)
            slope = _of_expected(engine, theta, made)
        if not made.ratio.q > 0:
            slope = zero_slope(engine.prepared)
        gradient = _by_template(model, engine.model, given, fixed, slope, variations)
    return Statistic(float(made.ratio.q), state_of(made.ratio), gradient, slope.mu)


def _of_expected(engine: OnHost, theta: Array, made: RatioAndFits) -> Slope:
    """The slope of a statistic of Asimov data, which change with the templates."""
    (value,) = value_slopes(engine, made)
    value, _ = through_asimov(engine.prepared, theta, made.problems[0].data, value)
    return weighted_sum((2.0, value), (-2.0, slope_of_floor(engine.prepared)))


def _by_template(
    model: Model,
    changed: Model,
    given: Mapping[templates.Key, ArrayLike],
    fixed: Fixed,
    slope: Slope,
    variations: str,
) -> list[Array]:
    arrays = by_argument(changed, None, fixed, [slope])["model"]
    named = dict(zip(vars(changed.arrays), (a[0] for a in arrays), strict=True))
    return list(templates.by_template(model, named, given, variations))


def statistic_rule(
    model: Model,
    keys: Keys,
    values: Values,
    *,
    objective: str,
    root: bool,
    **options: Any,
) -> Linear | None:
    """The rule for `objectives.unchecked_statistic`; see `linear_results`."""
    if not _are_possible(model, keys, values):
        return None
    found = statistic(model, keys, values, RATIO, objective=objective, **options)
    if not found.state.converged:
        return None
    value = square_root(found.q) if root else found.q
    slope = root_slope(found.q) if root else 1.0
    constant = State(WarmStart(0.0, 0.0, 0.0), 0.0, 0.0, 0.0)
    gradients = {"values": _by_value(values, found.gradient), "mu": [found.by_mu[None]]}
    return Linear((value, found.state), (np.array([slope]), constant), gradients)


def limit_rule(
    model: Model,
    keys: Keys,
    values: Values,
    objective: str,
    level: Number,
    test_statistic: str,
    data: ArrayLike | None = None,
    fixed: Fixed = None,
    variations: str = "absolute",
) -> Linear | None:
    """The rule for `objectives._limit`; see `linear_results`."""
    level = float(level)
    if not (_are_possible(model, keys, values) and 0 < level < 1):
        return None
    given = dict(zip(keys, values, strict=True))
    changed = templates.exchange(model, given, variations)
    engine = OnHost(changed)
    theta = expected_parameters(changed, 0.0, None)
    expects = objective == "asimov"
    tested_data = engine.asimov(theta) if expects else data_of(changed, data)
    found = limit_and_slopes(engine, level, tested_data, fixed, test_statistic)
    if found is None:
        return None
    value, slope, by_level = found[0].observed, found[1][0], found[2][0]
    if expects:
        slope, _ = through_asimov(engine.prepared, theta, tested_data, slope)
    gradient = _by_template(model, changed, given, fixed, slope, variations)
    gradients = {"values": _by_value(values, gradient), "level": [np.array([by_level])]}
    return Linear(value, np.ones(1), gradients)


def _by_value(values: Values, gradient: list[Array]) -> list[Array]:
    """The gradient in the form that `Linear` takes; several factors arrive as one array."""
    parts = gradient if isinstance(values, tuple) else [np.stack(gradient)]
    return [part[None] for part in parts]


def _are_possible(model: Model, keys: Keys, values: Values) -> bool:
    """Whether no yield is negative and all values are finite; a program returns NaN otherwise."""
    for key, given in zip(keys, values, strict=True):
        yields = templates.place_of(model, key).array == "nominal"
        if not np.all(np.isfinite(given)) or (yields and np.any(np.asarray(given) < 0)):
            return False
    return True
