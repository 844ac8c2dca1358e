"""Training objectives in JAX: significance, test statistics, limits, likelihood.

Each takes a model and the templates that the network produces (`histfactory.templates` describes
their names), and returns one number that is differentiable with respect to them:

    z0 = significance(model, {"signal": signal, "background": background}, objective="asimov")

objective: the data that the statistic is computed for.

    "observed"   the data of the workspace, or `data`
    "asimov"     the data that the model expects, without fluctuations and before any fit: with
                 signal (μ = 1) for q0 and the significance, without signal for qμ, Zμ and the
                 limit. They change with the templates.

Successive training steps differ little: with `state`, the fits start where those of the previous
step ended:

    z0, state = statistic_and_state(model, histograms, "z0", state=state)

The first step takes `state=initial_state(model)`, so that it runs the same program as all others.
`state.converged` says whether the fits converged; if they did not, the result is meaningless.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict, Unpack

import numpy as np

from firstlight.histfactory import evaluation, limits, templates
from firstlight.histfactory.array_types import ArrayLike, Number, Parameters
from firstlight.histfactory.exclusion_gradients import LIMIT
from firstlight.histfactory.first_gradients import RATIO
from firstlight.histfactory.fitting import Fixed
from firstlight.histfactory.hypotheses import square_root
from firstlight.histfactory.inference import (
    asimov,
    expected_ratio,
    likelihood_ratio,
)
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.linear_results import Rule, first_gradient_by
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import WarmStart
from firstlight.histfactory.precision import in_float64, is_traced
from firstlight.losses import first_gradients
from firstlight.losses.binning import LossError, checked_choice
from firstlight.losses.state import Keys, State, Values, state_of

OBJECTIVES = ("observed", "asimov")
Histograms = Mapping[templates.Key, ArrayLike]


class Options(TypedDict, total=False):
    """Options that all statistics take."""

    data: ArrayLike | None  # other observed data
    fixed: Fixed  # parameters to fix, as for `histfactory.fit`
    variations: str  # "absolute" or "relative": see `histfactory.templates`


def significance(
    model: Model, histograms: Histograms, objective: str = "observed", **options: Unpack[Options]
) -> Number:
    """Discovery significance Z0 = √q0; zero, with zero derivative, if there is no excess."""
    return statistic_and_state(model, histograms, "z0", None, objective, **options)[0]


def q0(
    model: Model, histograms: Histograms, objective: str = "observed", **options: Unpack[Options]
) -> Number:
    """Test statistic of the background-only hypothesis."""
    return statistic_and_state(model, histograms, "q0", None, objective, **options)[0]


def qmu(
    model: Model,
    histograms: Histograms,
    mu: Number,
    objective: str = "observed",
    **options: Unpack[Options],
) -> Number:
    """Test statistic for upper limits, Eq. 14: the best fit may have a negative signal."""
    return statistic_and_state(model, histograms, "qmu", mu, objective, **options)[0]


def qmu_tilde(
    model: Model,
    histograms: Histograms,
    mu: Number,
    objective: str = "observed",
    **options: Unpack[Options],
) -> Number:
    """Test statistic for upper limits, Eq. 16: a negative best fit counts as zero signal."""
    return statistic_and_state(model, histograms, "qmu_tilde", mu, objective, **options)[0]


def z_mu(
    model: Model,
    histograms: Histograms,
    mu: Number,
    objective: str = "observed",
    **options: Unpack[Options],
) -> Number:
    """√q̃μ: the exclusion of a signal strength, in standard deviations."""
    return statistic_and_state(model, histograms, "z_mu", mu, objective, **options)[0]


#: For each statistic: the test statistic, and whether its square root is taken.
_STATISTICS = {
    "z0": ("q0", True),
    "q0": ("q0", False),
    "qmu": ("q", False),
    "qmu_tilde": ("qtilde", False),
    "z_mu": ("qtilde", True),
}


def statistic_and_state(
    model: Model,
    histograms: Histograms,
    statistic: str = "z0",
    mu: Number | None = None,
    objective: str = "observed",
    *,
    state: State | None = None,
    **options: Unpack[Options],
) -> tuple[Number, State]:
    """A statistic, and the state from which its fits start in the next step.

    statistic: "z0", "q0", or with `mu` "qmu", "qmu_tilde", "z_mu", like the functions of these
        names ("z0" is `significance`).
    state: that of the previous step, or `initial_state(model)`.
    """
    checked_choice("statistic", statistic, tuple(_STATISTICS))
    test_statistic, root = _STATISTICS[statistic]
    if (mu is None) != (test_statistic == "q0"):
        wanted = "a signal strength: give mu" if mu is None else "no signal strength: drop mu"
        raise LossError(f"statistic {statistic!r} tests {wanted}.")
    return unchecked_statistic(
        model,
        *_checked(model, histograms, objective, options.get("data")),
        objective=objective,
        mu=mu,
        test_statistic=test_statistic,
        warm_start=None if state is None else state.warm_start,
        root=root,
        **options,
    )


def upper_limit(
    model: Model,
    histograms: Histograms,
    objective: str = "observed",
    *,
    level: float = 0.05,
    test_statistic: str = "qtilde",
    **options: Unpack[Options],
) -> Number:
    """Upper limit on the signal strength at CLs = `level`."""
    named = _checked(model, histograms, objective, options.get("data"))
    return _limit(model, *named, objective, level, test_statistic, **options)


def nll(
    model: Model,
    histograms: Histograms,
    parameters: Parameters | None = None,
    *,
    data: ArrayLike | None = None,
    variations: str = "absolute",
) -> Number:
    """Negative log-likelihood at `parameters` (a mapping or a vector; by default, their init)."""
    named = _checked(model, histograms, "observed", data)
    return _nll(model, *named, parameters, data, variations)


@in_float64
@first_gradient_by(Rule(first_gradients.statistic_rule, RATIO))
def unchecked_statistic(
    model: Model,
    keys: Keys,
    values: Values,
    *,
    objective: str,
    mu: Number | None,
    test_statistic: str,
    warm_start: WarmStart | None,
    root: bool,
    data: ArrayLike | None = None,
    fixed: Fixed = None,
    variations: str = "absolute",
) -> tuple[Number, State]:
    """A statistic (or its square root) of a model with other templates."""
    changed = _exchanged(model, keys, values, variations)
    if objective == "observed":
        found = likelihood_ratio(changed, mu, test_statistic, data, fixed, None, warm_start)
    elif mu is None:
        found = expected_ratio(changed, 0.0, 1.0, fixed, warm_start)
    else:
        found = expected_ratio(changed, mu, 0.0, fixed, warm_start)
    value = square_root(found.q) if root else found.q
    state = state_of(found)
    if not is_traced(values):  # then `_checked` has validated them
        return value, state
    state = jax.lax.stop_gradient(state)
    # A negative expectation would be rewarded, so impossible templates give NaN.
    possible = jnp.asarray(True)
    for key, given in zip(keys, map(jnp.asarray, values), strict=True):
        lowest = 0.0 if templates.place_of(model, key).array == "nominal" else -jnp.inf
        possible &= jnp.all((given >= lowest) & jnp.isfinite(given))
    known = replace(state.warm_start, known=state.warm_start.known & possible)
    return jnp.where(possible, value, jnp.nan), replace(state, warm_start=known)


def _exchanged(model: Model, keys: Keys, values: Values, variations: str) -> Model:
    return templates.exchange(model, dict(zip(keys, values, strict=True)), variations)


@in_float64
@first_gradient_by(Rule(first_gradients.limit_rule, LIMIT))
def _limit(
    model: Model,
    keys: Keys,
    values: Values,
    objective: str,
    level: Number,
    test_statistic: str,
    data: ArrayLike | None = None,
    fixed: Fixed = None,
    variations: str = "absolute",
) -> Number:
    changed = _exchanged(model, keys, values, variations)
    if objective == "asimov":
        data = asimov(changed, parameters={str(model.poi): 0.0})
    found = limits.upper_limit(changed, level, data, fixed, test_statistic=test_statistic)
    return found.observed


@in_float64
def _nll(
    model: Model,
    keys: Keys,
    values: Values,
    parameters: Parameters | None,
    data: ArrayLike | None,
    variations: str,
) -> Number:
    return evaluation.nll(_exchanged(model, keys, values, variations), parameters, data)


def _checked(
    model: Model, histograms: Histograms, objective: str, data: ArrayLike | None
) -> tuple[Keys, Values]:
    """Names and values of the templates, both in the order given."""
    checked_choice("objective", objective, OBJECTIVES)
    if objective == "asimov" and data is not None:
        raise LossError('data are given, but objective="asimov" makes its own. Drop one.')
    if not isinstance(histograms, Mapping):
        raise LossError(
            "histograms must be a mapping: {sample: yields} or {(channel, sample): yields}."
        )
    for key, values in histograms.items():
        place = templates.place_of(model, key)
        templates.require_size(model, key, place, np.shape(values))
        if wrong := _wrong(place, values):
            raise LossError(f"histograms: the template {templates.name_of(key)} {wrong}")
    return tuple(histograms), tuple(histograms.values())


def _wrong(place: templates.Position, given: ArrayLike) -> str:
    """What is wrong with a template, or "" if nothing is. Traced values cannot be checked."""
    dtype = str(getattr(given, "dtype", "float64"))
    if dtype in ("float16", "bfloat16"):
        return f"is {dtype}, which is too imprecise for yields. Convert it to float32 or float64."
    if is_traced(given):
        return ""
    values = np.asarray(given, np.float64)
    if not np.all(np.isfinite(values)):
        return "has NaN or infinity."
    if place.array == "nominal" and np.any(values < 0):
        return (
            "has negative yields. Event weights of both signs can cause this: use more events, "
            "or wider bins."
        )
    if not place.axes and not values > 0:
        return f"is {float(values):g}; a factor must be above zero."
    return ""
