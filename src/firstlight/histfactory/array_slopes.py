"""Derivatives of the likelihood with respect to the numbers of the model and the data, closed form.

Automatic differentiation of `likelihood.nll` gives the same numbers, and takes longer to compile.
"""

from __future__ import annotations

from dataclasses import replace

from firstlight.histfactory.array_types import Array
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


def array_slopes(model: Prepared, data: Data, theta: Array) -> tuple[Evaluation, Prepared, Data]:
    """Value and gradient at `theta`, and the derivatives of the value with respect to both others.

    What selects (masks, channels) has the derivative zero.
    """
    at = evaluate(model, data, theta, curvature=False)
    expected = jnp.sum(at.cells, axis=0)
    counted, possible = data.main > 0, expected > TINY_YIELD
    used = counted & possible
    log_ratio = jnp.log(jnp.where(used, expected / jnp.where(counted, data.main, 1.0), 1.0))
    slope = 1 - jnp.where(used, data.main / jnp.where(used, expected, 1.0), 0.0)
    shape_alpha, rate_alpha = shape_and_rate_alphas(model, theta[: model.blocks[0]])
    of_shifted = slope * at.multiplier
    basis = additive_basis(model.codes[1], shape_alpha, jnp)
    of_rows = ((slope * at.cells) @ membership(model)).reshape(-1)
    deviations, logs = _of_rates(model, rate_alpha, of_rows)
    pull, poisson = data.aux - theta, model.tau > 0
    rate = model.tau * theta
    aux_ratio = jnp.where((rate > TINY_YIELD) & (data.aux > 0), rate / data.aux, 1.0)
    none = jnp.zeros_like
    slopes = replace(
        model,
        nominal=of_shifted,
        shifts=jnp.stack([basis.g, basis.f])[:, :, None, None] * of_shifted,
        deviations=deviations,
        logs=logs,
        factor_mask=none(model.factor_mask),
        carries_gamma=none(model.carries_gamma),
        channel_of_bin=none(model.channel_of_bin),
        weight=0.5 * jnp.where(model.weight > 0, pull * pull, 0.0),
        tau=jnp.where(poisson, theta - data.aux / jnp.where(poisson, model.tau, 1.0), 0.0),
        constraint_constant=jnp.ones(()),
    )
    of_data = Data(-log_ratio, model.weight * pull - jnp.where(poisson, jnp.log(aux_ratio), 0.0))
    return at, slopes, of_data


def _of_rates(model: Prepared, alpha: Array, of_rows: Array) -> tuple[Array, Array]:
    """The same for `deviations` and `logs`, from the derivative by every row's logarithm."""
    inside = (jnp.abs(alpha) < (1.0 if model.codes[0] == "code4" else 0.0))[:, None]
    value, _, _ = code4(model.deviations, model.logs, alpha, jnp)
    of_value = jnp.where(inside, of_rows / value, 0.0)
    by_deviation, by_log = code4_slopes(model.deviations, model.logs, alpha, jnp)
    beyond = jnp.stack([jnp.maximum(alpha, 0.0), jnp.maximum(-alpha, 0.0)])[:, :, None]
    outside = jnp.where(inside, 0.0, beyond * of_rows)
    return of_value * by_deviation, of_value * by_log + outside
