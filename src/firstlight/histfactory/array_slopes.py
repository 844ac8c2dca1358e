"""Derivatives of the likelihood with respect to the model's numbers and the data, in closed form.

Automatic differentiation of `likelihood.nll` gives the same numbers but takes longer to compile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firstlight.histfactory.array_types import Array, Numpy
from firstlight.histfactory.closed_form import Evaluation, evaluate
from firstlight.histfactory.interpolation import additive_basis, code4, code4_slopes
from firstlight.histfactory.lazy_jax import jnp
from firstlight.histfactory.likelihood import (
    TINY_YIELD,
    Data,
    Prepared,
    membership,
    shape_and_rate_alphas,
)


def array_slopes(
    model: Prepared, data: Data, theta: Array, xp: Numpy = jnp
) -> tuple[Evaluation, Prepared, Data]:
    """Value and gradient at `theta`, and the derivatives of the value by model and data.

    Arrays that only select (masks, channels) have derivative zero.
    """
    at = evaluate(model, data, theta, curvature=False, xp=xp)
    expected = xp.sum(at.cells, axis=0)
    counted, possible = data.main > 0, expected > TINY_YIELD
    used = counted & possible
    log_ratio = xp.log(xp.where(used, expected / xp.where(counted, data.main, 1.0), 1.0))
    slope = 1 - xp.where(used, data.main / xp.where(used, expected, 1.0), 0.0)
    pull, poisson = data.aux - theta, model.tau > 0
    rate = model.tau * theta
    aux_ratio = xp.where((rate > TINY_YIELD) & (data.aux > 0), rate / data.aux, 1.0)
    none = xp.zeros_like
    slopes = replace(
        model,
        **expectation_slopes(model, at, theta, slope, xp),
        factor_mask=none(model.factor_mask),
        carries_gamma=none(model.carries_gamma),
        channel_of_bin=none(model.channel_of_bin),
        weight=0.5 * xp.where(model.weight > 0, pull * pull, 0.0),
        tau=xp.where(poisson, theta - data.aux / xp.where(poisson, model.tau, 1.0), 0.0),
        constraint_constant=xp.ones(()),
    )
    of_data = Data(-log_ratio, model.weight * pull - xp.where(poisson, xp.log(aux_ratio), 0.0))
    return at, slopes, of_data


def expectation_slopes(
    model: Prepared, at: Evaluation, theta: Array, of_bins: Array, xp: Numpy = jnp
) -> dict[str, Any]:
    """Derivatives with respect to the model's numbers, given those by the expectation per bin."""
    shape_alpha, rate_alpha = shape_and_rate_alphas(model, theta[: model.blocks[0]])
    of_shifted = of_bins * at.multiplier
    basis = additive_basis(model.codes[1], shape_alpha, xp)
    of_rows = ((of_bins * at.cells) @ membership(model, xp)).reshape(-1)
    deviations, logs = _of_rates(model, rate_alpha, of_rows, xp)
    return {
        "nominal": of_shifted,
        "shifts": xp.stack([basis.g, basis.f])[:, :, None, None] * of_shifted,
        "deviations": deviations,
        "logs": logs,
    }


def _of_rates(model: Prepared, alpha: Array, of_rows: Array, xp: Numpy) -> tuple[Array, Array]:
    """Derivatives by `deviations` and `logs`, given those by the logarithm of every row."""
    inside = (xp.abs(alpha) < (1.0 if model.codes[0] == "code4" else 0.0))[:, None]
    value, _, _ = code4(model.deviations, model.logs, alpha, xp)
    of_value = xp.where(inside, of_rows / value, 0.0)
    by_deviation, by_log = code4_slopes(model.deviations, model.logs, alpha, xp)
    beyond = xp.stack([xp.maximum(alpha, 0.0), xp.maximum(-alpha, 0.0)])[:, :, None]
    outside = xp.where(inside, 0.0, beyond * of_rows)
    return of_value * by_deviation, of_value * by_log + outside
