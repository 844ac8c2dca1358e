"""The likelihood in closed form, as used by the fit: value, exact gradient and exact Hessian.

Expected yield of a cell: `ν = D·M`, with `D` the nominal yield plus all additive shifts and `M` the
product of all factors. Every shift and every factor depends on one parameter, so with `d' = ∂D/∂p`
and the logarithmic slope `l' = ∂ln m/∂p`

    ∂ν/∂p    = M·d'_p + ν·l'_p
    ∂²ν/∂p∂q = M·(d'_p l'_q + d'_q l'_p) + ν·l'_p l'_q            p ≠ q

and the Hessian is a few matrix products. A `normsys` factor is one number for all bins of a
(sample, channel), so its products run over those, not over cells.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from firstlight.histfactory.array_types import Array, Numpy
from firstlight.histfactory.interpolation import Basis, additive_basis, code4
from firstlight.histfactory.lazy_jax import jnp
from firstlight.histfactory.likelihood import (
    TINY_FACTOR,
    TINY_YIELD,
    Data,
    Prepared,
    by_slot,
    inside_and_exponent,
    membership,
    nll_at,
    shape_and_rate_alphas,
)


class Curvature(NamedTuple):
    """The Hessian in parts: its positive part can be used alone.

    With J = ∂ν/∂θ of every bin and W = n/ν² it is `J W Jᵀ` + the constraints (positive) + a
    second-order part, which is small where the model fits. γ couples to no other γ.
    """

    bins: Array  # J of α and φ [α+φ, bin]
    bins_gamma: Array  # J of the one γ of each bin [bin]
    stiffness: Array  # W [bin]
    constraint: Array  # [parameter]
    second: Array  # second-order part of α and φ [α+φ, α+φ]
    second_gamma: Array  # second-order part between γ and α, φ [bin, α+φ]


class Blocks(NamedTuple):
    """The Hessian: α and φ dense, γ diagonal, and their coupling."""

    dense: Array  # [α+φ, α+φ]
    coupling: Array  # [bin, α+φ]
    diagonal: Array  # [bin]


def assemble(parts: Curvature, exactness: Array = 1.0, xp: Numpy = jnp) -> Blocks:
    """The Hessian (`exactness` 1) or its positive part (0), the Fisher information at ν = n."""
    n_dense = parts.second.shape[0]
    weighted = parts.stiffness * parts.bins
    dense = weighted @ parts.bins.T + exactness * parts.second
    dense += xp.diag(parts.constraint[:n_dense])
    return Blocks(
        dense=dense,
        coupling=(parts.bins_gamma * weighted).T + exactness * parts.second_gamma,
        diagonal=parts.stiffness * parts.bins_gamma**2 + parts.constraint[n_dense:],
    )


class Evaluation(NamedTuple):
    """Value, gradient and Hessian at one point."""

    nll: Array
    gradient: Array
    cells: Array  # ν [slot, bin]
    multiplier: Array  # M [slot, bin]
    curvature: Curvature | None


def no_evaluation(model: Prepared, xp: Numpy) -> Any:
    """A placeholder without curvature: the first state of a loop in a program."""
    if xp is np:
        return None
    cells = xp.zeros(model.nominal.shape)
    return Evaluation(xp.zeros(()), xp.zeros(model.weight.shape), cells, cells, None)


class _Expansion(NamedTuple):
    """Intermediate results shared by value, gradient and Hessian."""

    basis: Basis
    log_slope: Array  # l' of normsys [α, row]
    bend: Array  # m''/m of normsys [α, row]
    multiplier: Array  # M [slot, bin]
    cells: Array  # ν of every cell
    phi: Array  # never zero
    gamma: Array
    nll: Array
    slope: Array  # ∂NLL/∂ν of every bin
    stiffness: Array  # ∂²NLL/∂ν²


def evaluate(
    model: Prepared, data: Data, theta: Array, curvature: bool = True, xp: Numpy = jnp
) -> Evaluation:
    """Value, gradient and optionally the Hessian, in closed form.

    With `xp=numpy` nothing is compiled, so a single evaluation returns sooner.
    """
    parts = _expand(model, data, theta, xp)
    slope_shift = parts.slope * parts.multiplier
    slope_cells = parts.slope * parts.cells
    row_slope = (slope_cells @ membership(model, xp)).reshape(-1)
    along = xp.tensordot(model.shifts, slope_shift, 2)
    gradient_alpha = _over_alphas(
        model,
        parts.basis.dg * along[0] + parts.basis.df * along[1],
        xp.sum(parts.log_slope * row_slope, axis=1),
        xp,
    )
    gradient_phi = xp.tensordot(model.factor_mask, slope_cells, 2) / parts.phi
    carried = xp.sum(model.carries_gamma * parts.cells, axis=0) / parts.gamma
    pull, bend = _constraint_derivatives(model, data, theta, xp)
    gradient = xp.concatenate([gradient_alpha, gradient_phi, parts.slope * carried]) + pull
    value = Evaluation(parts.nll, gradient, parts.cells, parts.multiplier, None)
    if not curvature:
        return value
    own_alpha = _over_alphas(
        model,
        parts.basis.ddg * along[0] + parts.basis.ddf * along[1],
        xp.sum(parts.bend * row_slope, axis=1),
        xp,
    )
    second = _curvature(model, parts, row_slope, own_alpha, carried, bend, xp)
    return value._replace(curvature=second)


def _expand(model: Prepared, data: Data, theta: Array, xp: Numpy) -> _Expansion:
    begin_phi, begin_gamma = model.blocks
    alpha, phi, gamma = theta[:begin_phi], theta[begin_phi:begin_gamma], theta[begin_gamma:]
    phi = xp.where(xp.abs(phi) < TINY_FACTOR, TINY_FACTOR, phi)
    gamma = xp.where(xp.abs(gamma) < TINY_FACTOR, TINY_FACTOR, gamma)

    shape_alpha, rate_alpha = shape_and_rate_alphas(model, alpha)
    basis = additive_basis(model.codes[1], shape_alpha, xp)
    shifted = model.nominal + xp.tensordot(xp.stack([basis.g, basis.f]), model.shifts, 2)
    inside, exponent = inside_and_exponent(model, rate_alpha, xp)
    value, slope, bend = code4(model.deviations, model.logs, rate_alpha, xp)
    inside = inside[:, None]
    log_outside = xp.where((rate_alpha > 0)[:, None], model.logs[0], -model.logs[1])
    norm = xp.prod(xp.where(inside, value, 1.0), axis=0) * xp.exp(exponent)
    factors = xp.prod(xp.where(model.factor_mask > 0, phi[:, None, None], 1.0), axis=0)
    gammas = xp.where(model.carries_gamma > 0, gamma, 1.0)
    multiplier = by_slot(model, norm)[:, model.channels] * factors * gammas
    cells = shifted * multiplier

    expected = xp.sum(cells, axis=0)
    used = (data.main > 0) & (expected > TINY_YIELD)
    divisor = xp.where(used, expected, 1.0)
    ratio = xp.where(used, data.main / divisor, 0.0)
    return _Expansion(
        basis=basis,
        log_slope=xp.where(inside, slope / value, log_outside),
        bend=xp.where(inside, bend / value, log_outside * log_outside),
        multiplier=multiplier,
        cells=cells,
        phi=phi,
        gamma=gamma,
        nll=nll_at(model, data, theta, expected, xp),
        slope=1 - ratio,
        stiffness=ratio / divisor,
    )


def _constraint_derivatives(
    model: Prepared, data: Data, theta: Array, xp: Numpy
) -> tuple[Array, Array]:
    """First and second derivatives of the constraint terms with respect to their own parameter."""
    poisson = model.tau > 0
    safe = xp.where(poisson & (xp.abs(theta) > TINY_FACTOR), theta, 1.0)
    ratio = xp.where(poisson, data.aux / safe, 0.0)
    return model.weight * (theta - data.aux) + model.tau - ratio, model.weight + ratio / safe


def _curvature(
    model: Prepared,
    parts: _Expansion,
    row_slope: Array,
    own_alpha: Array,
    carried: Array,
    bend: Array,
    xp: Numpy,
) -> Curvature:
    """The Hessian in parts; `own_alpha` holds the terms of ∂²/∂α² beyond products of slopes."""
    n_alphas = model.blocks[0]
    shift_slope = (
        parts.basis.dg[:, None, None] * model.shifts[0]
        + parts.basis.df[:, None, None] * model.shifts[1]
    )
    by_shift = parts.multiplier * shift_slope  # M d'
    by_rate = parts.cells * by_slot(model, parts.log_slope)[:, :, model.channels]  # ν l'
    by_alpha = _over_alphas(model, by_shift, by_rate, xp)  # ∂ν/∂α [α, slot, bin]
    phi_slope = model.factor_mask / parts.phi[:, None, None]
    by_either = xp.concatenate([by_alpha, parts.cells * phi_slope])

    row_shift = (parts.slope * by_shift) @ membership(model, xp)
    row_shift = row_shift.reshape(len(row_shift), len(row_slope))
    both = _over_alphas(model, row_shift, 0.5 * row_slope * parts.log_slope, xp)
    half = both @ parts.log_slope.T
    half = xp.pad(half, ((0, 0), (n_alphas - half.shape[1], 0)))
    # For φ: one matrix product over all cells, with few columns.
    mixed = xp.tensordot(by_either, parts.slope * phi_slope, ((1, 2), (1, 2)))
    second = xp.concatenate([xp.concatenate([half + half.T, mixed[:n_alphas]], axis=1), mixed.T])
    shared = n_alphas - len(parts.log_slope)  # the first α with a rate
    both = xp.sum(row_shift[shared:] * parts.log_slope[: len(row_shift) - shared], axis=1)
    own_alpha += 2 * xp.pad(both, (shared, n_alphas - len(row_shift)))
    own = xp.concatenate([own_alpha, xp.zeros_like(parts.phi)])
    return Curvature(
        bins=xp.sum(by_either, axis=1),
        bins_gamma=carried,
        stiffness=parts.stiffness,
        constraint=bend,
        second=xp.where(xp.eye(len(own), dtype=bool), own[:, None], second),
        second_gamma=(
            parts.slope / parts.gamma * xp.sum(model.carries_gamma * by_either, axis=1)
        ).T,
    )


def own_curvature(parts: Curvature, xp: Numpy = jnp) -> Array:
    """The diagonal of the Hessian."""
    dense = xp.sum(parts.stiffness * parts.bins**2, axis=1) + xp.diagonal(parts.second)
    gamma = parts.stiffness * parts.bins_gamma**2
    return xp.concatenate([dense, gamma]) + parts.constraint


def dense_hessian(parts: Curvature, xp: Numpy = jnp) -> Array:
    """The Hessian as one matrix over all internal parameters."""
    dense, coupling, diagonal = assemble(parts, 1.0, xp)
    return xp.block([[dense, coupling.T], [coupling, xp.diag(diagonal)]])


def variations(
    model: Prepared, at: Evaluation, theta: Array, xp: Numpy = jnp
) -> tuple[Array, Array, Array]:
    """Expected counts [bin], and what α = 1 and α = -1 add to them for every α [α, bin], twice.

    Each α is varied from 0 with all other parameters unchanged. For an α that is not at zero this
    holds to first order: its factors are removed by linear interpolation.
    """
    _, rate_alpha = shape_and_rate_alphas(model, theta[: model.blocks[0]])
    half_sum, scaled = xp.sum(model.shifts * at.multiplier, axis=2)
    hi, lo = model.deviations
    above, below = xp.maximum(rate_alpha, 0.0)[:, None], xp.maximum(-rate_alpha, 0.0)[:, None]
    undone = 1 / (1 + above * hi + below * lo)
    # Cells by row, so that both sums over rows are one matrix product.
    by_row = at.cells[:, None, :] * membership(model, xp).T
    by_row = by_row.reshape(hi.shape[-1], at.cells.shape[-1])
    of_rates = xp.concatenate([undone * hi, undone * lo]) @ by_row
    n = len(rate_alpha)
    # Every additive code has g(±1) = ±1 and f(±1) = 8.
    up = _over_alphas(model, 8 * scaled + half_sum, of_rates[:n], xp)
    down = _over_alphas(model, 8 * scaled - half_sum, of_rates[n:], xp)
    return xp.sum(at.cells, axis=0), up, down


def _over_alphas(model: Prepared, of_shapes: Array, of_rates: Array, xp: Numpy = jnp) -> Array:
    """Sum the contributions of shapes (first α) and rates (last α) for every α."""
    n_alphas, rest = model.blocks[0], ((0, 0),) * (of_shapes.ndim - 1)
    if xp is np:  # `np.pad` takes longer than all the rest
        dtype = np.result_type(of_shapes, of_rates)
        total = np.zeros((n_alphas, *of_shapes.shape[1:]), dtype)
        total[: len(of_shapes)] = of_shapes
        total[n_alphas - len(of_rates) :] += of_rates
        return total
    return xp.pad(of_shapes, ((0, n_alphas - len(of_shapes)), *rest)) + xp.pad(
        of_rates, ((n_alphas - len(of_rates), 0), *rest)
    )
