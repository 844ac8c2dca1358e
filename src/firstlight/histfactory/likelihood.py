"""The likelihood of binned data: value, exact gradient and exact Hessian, in closed form.

Expected yield of a cell: `ν = D·M`, with `D` the nominal yield plus all additive shifts and `M` the
product of all factors. Every shift and every factor depends on one parameter, so with `d' = ∂D/∂p`
and the logarithmic slope `l' = ∂ln m/∂p`

    ∂ν/∂p    = M·d'_p + ν·l'_p
    ∂²ν/∂p∂q = M·(d'_p l'_q + d'_q l'_p) + ν·l'_p l'_q            p ≠ q

and the Hessian is a few matrix products. A `normsys` factor is one number for all bins of a
(sample, channel), so its products run over those, not over cells.

`yields` is the plain form, which automatic differentiation uses when the arrays of a model vary,
also at a factor of zero. `evaluate` is the closed form, which the fit uses. The tests compare the
two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from firstlight.histfactory.interpolation import Basis, additive_basis, code4
from firstlight.histfactory.lazy_jax import custom_jvp, jax, jnp, pytree
from firstlight.histfactory.precision import float64_scope

#: A factor closer to zero than this is replaced by it where the closed form divides by the factor.
#: The product of two such factors and a yield is still far from the smallest normal number.
TINY_FACTOR = 1e-100
#: A smaller expectation counts as zero; `TINY_FACTOR` times any yield is smaller.
TINY_YIELD = 1e-80


@pytree
@dataclass(frozen=True)
class Prepared:
    """A model ready for evaluation. Everything is a float array, so that all is traced."""

    nominal: Any  # [slot, bin]
    shifts: Any  # S and A of the additive codes, for the first α [2, α, slot, bin]
    deviations: Any  # hi - 1 and lo - 1, for the last α [2, α, row]
    logs: Any  # ln hi and ln lo, likewise [2, α, row]
    factor_mask: Any  # [φ, slot, bin]
    carries_gamma: Any  # [slot, bin]
    channel_of_bin: Any  # [bin]
    weight: Any  # 1/σ² of normal constraints, else 0 [parameter]
    tau: Any  # rate of Poisson constraints, else 0 [parameter]
    constraint_constant: Any  # Σ ln σ√2π
    codes: tuple[str, str] = field(metadata={"static": True}, default=("code4", "code4p"))

    @property
    def blocks(self) -> tuple[int, int]:
        """Where φ and γ begin in a parameter vector."""
        n_factors, n_bins = self.factor_mask.shape[0], self.nominal.shape[1]
        begin_gamma = self.weight.shape[0] - n_bins
        return begin_gamma - n_factors, begin_gamma

    @cached_property
    def kind(self) -> tuple[Any, ...]:
        """What a compiled program depends on: all shapes, and the codes."""
        shapes = (self.shifts.shape, self.logs.shape, self.factor_mask.shape, self.weight.shape)
        return (*shapes, self.codes)

    @property
    def cells(self) -> int:
        """The number of yields that all parameters together vary: what an evaluation costs."""
        return int(math.prod(self.nominal.shape)) * self.blocks[1]

    @cached_property
    def on_device(self) -> Prepared:
        """The same for compiled programs."""
        with float64_scope(), jax.ensure_compile_time_eval():
            copy: Prepared = jax.device_put(self)
            return copy

    @property
    def channels(self) -> Any:
        """Channel of every bin, as an index."""
        return self.channel_of_bin.astype(np.int32)


class Data(NamedTuple):
    """Observed or simulated data: main counts and auxiliary data in the internal order."""

    main: Any  # [bin]
    aux: Any  # [parameter]


def prepare(arrays: Any, structure: Any, codes: tuple[str, str], xp: Any = jnp) -> Prepared:
    """Everything that does not depend on the parameters. With `xp=numpy` nothing is compiled."""
    used = structure.histosys_used
    up = (arrays.histosys_hi - arrays.nominal) * used
    down = (arrays.nominal - arrays.histosys_lo) * used
    normsys = xp.stack([arrays.normsys_hi, arrays.normsys_lo])
    normsys = normsys.reshape(*normsys.shape[:2], math.prod(normsys.shape[2:]))
    half_log_2pi = 0.5 * np.log(2 * np.pi)
    return Prepared(
        nominal=arrays.nominal,
        shifts=xp.stack([(up + down) / 2, (up - down) / 16]),
        deviations=normsys - 1,
        logs=xp.log(normsys),
        factor_mask=structure.factor_mask,
        carries_gamma=structure.carries_gamma,
        channel_of_bin=structure.channel_of_bin,
        weight=structure.normal / arrays.sigma**2,
        tau=structure.poisson * arrays.tau,
        constraint_constant=(structure.normal * (xp.log(arrays.sigma) + half_log_2pi)).sum(),
        codes=codes,
    )


def yields(model: Prepared, theta: Any, xp: Any = jnp) -> Any:
    """Expected yield of every cell [slot, bin], in the form for automatic differentiation."""
    begin_phi, begin_gamma = model.blocks
    alpha, phi, gamma = theta[:begin_phi], theta[begin_phi:begin_gamma], theta[begin_gamma:]
    shape_alpha, rate_alpha = shape_and_rate_alphas(model, alpha)
    basis = additive_basis(model.codes[1], shape_alpha, xp)
    shifted = model.nominal + xp.tensordot(xp.stack([basis.g, basis.f]), model.shifts, 2)
    inside, exponent = _inside_and_exponent(model, rate_alpha, xp)
    value, _, _ = code4(model.deviations, model.logs, rate_alpha, xp)
    value = xp.where(inside[:, None], value, 1.0)
    norm = (np.prod(value, axis=0) if xp is np else _product(value)) * xp.exp(exponent)
    factors = xp.prod(xp.where(model.factor_mask > 0, phi[:, None, None], 1.0), axis=0)
    gammas = xp.where(model.carries_gamma > 0, gamma, 1.0)
    # A product with ones and zeros, not indexing: its transpose keeps 64 bits in any program.
    return shifted * (_by_slot(model, norm) @ membership(model, xp).T) * factors * gammas


def expected_counts(model: Prepared, theta: Any, xp: Any = jnp) -> Any:
    """Expected main counts [bin]."""
    return xp.sum(yields(model, theta, xp), axis=0)


def variations(model: Prepared, at: Evaluation, theta: Any, xp: Any = jnp) -> tuple[Any, Any, Any]:
    """Expected counts, and what the two variations (α = ±1) of every α add to them at α = 0.

    [bin] and twice [α, bin]; all other parameters stay. Where an α is not zero this holds to first
    order: its factors are removed by linear interpolation.
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


def shape_and_rate_alphas(model: Prepared, alpha: Any) -> tuple[Any, Any]:
    """The α with shape templates (the first ones), and those with rates (the last ones)."""
    n_shapes, n_rates = model.shifts.shape[1], model.logs.shape[1]
    return alpha[:n_shapes], alpha[len(alpha) - n_rates :]


def _over_alphas(model: Prepared, of_shapes: Any, of_rates: Any, xp: Any = jnp) -> Any:
    """The sum of both groups for every α."""
    n_alphas, rest = model.blocks[0], ((0, 0),) * (of_shapes.ndim - 1)
    if xp is np:  # `np.pad` takes longer than all the rest
        total = np.zeros((n_alphas, *of_shapes.shape[1:]))
        total[: len(of_shapes)] = of_shapes
        total[n_alphas - len(of_rates) :] += of_rates
        return total
    return xp.pad(of_shapes, ((0, n_alphas - len(of_shapes)), *rest)) + xp.pad(
        of_rates, ((n_alphas - len(of_rates), 0), *rest)
    )


def _by_slot(model: Prepared, of_rows: Any) -> Any:
    """[slot, channel] from rows."""
    n_slots, n_rows = model.nominal.shape[0], of_rows.shape[-1]
    return of_rows.reshape(*of_rows.shape[:-1], n_slots, n_rows // n_slots)


def _inside_and_exponent(model: Prepared, alpha: Any, xp: Any = jnp) -> tuple[Any, Any]:
    """Which α use the polynomial, and the summed logarithms of the factors of all others.

    This takes one exponential per (sample, channel) instead of one per systematic.
    """
    inside = xp.abs(alpha) < (1.0 if model.codes[0] == "code4" else 0.0)
    above = xp.where(inside, 0.0, xp.maximum(alpha, 0.0))
    below = xp.where(inside, 0.0, xp.maximum(-alpha, 0.0))
    return inside, xp.tensordot(xp.stack([above, below]), model.logs, 2)


@custom_jvp
def _product(factors: Any) -> Any:
    """Product over the first axis of factors that are not zero."""
    return jnp.prod(factors, axis=0)


@_product.defjvp
def _product_jvp(primals: Any, tangents: Any) -> Any:
    value = _product(primals[0])
    return value, value * jnp.sum(tangents[0] / primals[0], axis=0)


def nll(model: Prepared, data: Data, theta: Any, xp: Any = jnp) -> Any:
    """Negative log-likelihood relative to a model that fits every count exactly.

    Differences keep their digits even at a million events; `saturated_nll` is the rest.
    Differentiable with respect to all arguments.
    """
    expected = expected_counts(model, theta, xp)
    return xp.sum(_poisson_nll(data.main, expected, xp)) + _constraint_nll(model, data, theta, xp)


def _constraint_nll(model: Prepared, data: Data, theta: Any, xp: Any = jnp) -> Any:
    pull = xp.where(model.weight > 0, data.aux - theta, 0.0)
    poisson = xp.where(model.tau > 0, _poisson_nll(data.aux, model.tau * theta, xp), 0.0)
    return xp.sum(0.5 * model.weight * pull * pull + poisson) + model.constraint_constant


def _poisson_nll(observed: Any, expected: Any, xp: Any = jnp) -> Any:
    """ν - n - n ln(ν/n); ν where n = 0; infinite where n > 0 is impossible."""
    counted = observed > 0
    possible = expected > TINY_YIELD
    n = xp.where(counted, observed, 1.0)
    log_ratio = xp.log(xp.where(counted & possible, expected / n, 1.0))
    value = expected - xp.where(counted, n + n * log_ratio, 0.0)
    return xp.where(counted & ~possible, xp.inf, value)


def saturated_nll(tau: Any, data: Data, xp: Any = jnp) -> Any:
    """Σ n - n ln n + ln n! over main and Poisson auxiliary data: the NLL that `nll` leaves out."""
    aux = xp.where(tau > 0, data.aux, 0.0)
    return _stirling_rest(data.main, xp).sum(-1) + _stirling_rest(aux, xp).sum(-1)


def _stirling_rest(n: Any, xp: Any) -> Any:
    """n - n ln n + ln n!, without cancellation: ½ ln 2πn and the series of Γ beyond.

    The series is for n ≥ 16 (error 1e-16); smaller n are brought there by ln n! = ln (n+16)! - Σ.
    """
    positive = xp.where(n > 0, n, 1.0)
    large = positive + 16.0
    series = _stirling_series(1 / large)
    log_factorial_large = large * xp.log(large) - large + 0.5 * xp.log(2 * np.pi * large) + series
    steps = sum(xp.log(positive + k) for k in range(1, 17))
    small = positive - positive * xp.log(positive) + log_factorial_large - steps
    series = _stirling_series(1 / xp.where(positive > 16, positive, 16.0))
    return xp.where(
        n > 0, xp.where(n > 16, 0.5 * xp.log(2 * np.pi * positive) + series, small), 0.0
    )


def _stirling_series(x: Any) -> Any:
    """The remainder of Stirling's formula for ln n!, in x = 1/n; Eq. 5.11.1 of dlmf.nist.gov."""
    s = x * x
    return x * (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188))))


class Curvature(NamedTuple):
    """The Hessian in parts, so that its positive part can be used alone.

    With J = ∂ν/∂θ of every bin and W = n/ν² it is `J W Jᵀ` + the constraints (positive) + a
    second-order part, which is small where the model fits. γ couples to no other γ.
    """

    bins: Any  # J of α and φ [α+φ, bin]
    bins_gamma: Any  # J of the one γ of each bin [bin]
    stiffness: Any  # W [bin]
    constraint: Any  # [parameter]
    second: Any  # second-order part of α and φ [α+φ, α+φ]
    second_gamma: Any  # second-order part between γ and α, φ [bin, α+φ]


class Blocks(NamedTuple):
    """The Hessian: α and φ dense, γ diagonal, and their coupling."""

    dense: Any  # [α+φ, α+φ]
    coupling: Any  # [bin, α+φ]
    diagonal: Any  # [bin]


def assemble(parts: Curvature, exactness: Any = 1.0, xp: Any = jnp) -> Blocks:
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

    nll: Any
    gradient: Any
    cells: Any  # ν [slot, bin]
    multiplier: Any  # M, likewise
    curvature: Curvature | None


class _Expansion(NamedTuple):
    """Intermediate results shared by value, gradient and Hessian."""

    basis: Basis
    log_slope: Any  # l' of normsys [α, row]
    bend: Any  # m''/m of normsys [α, row]
    multiplier: Any  # M [slot, bin]
    cells: Any  # ν of every cell
    phi: Any  # never zero
    gamma: Any
    nll: Any
    slope: Any  # ∂NLL/∂ν of every bin
    stiffness: Any  # ∂²NLL/∂ν²


def evaluate(
    model: Prepared, data: Data, theta: Any, curvature: bool = True, xp: Any = jnp
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


def _expand(model: Prepared, data: Data, theta: Any, xp: Any) -> _Expansion:
    begin_phi, begin_gamma = model.blocks
    alpha, phi, gamma = theta[:begin_phi], theta[begin_phi:begin_gamma], theta[begin_gamma:]
    phi = xp.where(xp.abs(phi) < TINY_FACTOR, TINY_FACTOR, phi)
    gamma = xp.where(xp.abs(gamma) < TINY_FACTOR, TINY_FACTOR, gamma)

    shape_alpha, rate_alpha = shape_and_rate_alphas(model, alpha)
    basis = additive_basis(model.codes[1], shape_alpha, xp)
    shifted = model.nominal + xp.tensordot(xp.stack([basis.g, basis.f]), model.shifts, 2)
    inside, exponent = _inside_and_exponent(model, rate_alpha, xp)
    value, slope, bend = code4(model.deviations, model.logs, rate_alpha, xp)
    inside = inside[:, None]
    log_outside = xp.where((rate_alpha > 0)[:, None], model.logs[0], -model.logs[1])
    norm = xp.prod(xp.where(inside, value, 1.0), axis=0) * xp.exp(exponent)
    factors = xp.prod(xp.where(model.factor_mask > 0, phi[:, None, None], 1.0), axis=0)
    gammas = xp.where(model.carries_gamma > 0, gamma, 1.0)
    multiplier = _by_slot(model, norm)[:, model.channels] * factors * gammas
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
        nll=xp.sum(_poisson_nll(data.main, expected, xp)) + _constraint_nll(model, data, theta, xp),
        slope=1 - ratio,
        stiffness=ratio / divisor,
    )


def _constraint_derivatives(model: Prepared, data: Data, theta: Any, xp: Any) -> tuple[Any, Any]:
    """First and second derivatives of the constraint terms with respect to their own parameter."""
    poisson = model.tau > 0
    safe = xp.where(poisson & (xp.abs(theta) > TINY_FACTOR), theta, 1.0)
    ratio = xp.where(poisson, data.aux / safe, 0.0)
    return model.weight * (theta - data.aux) + model.tau - ratio, model.weight + ratio / safe


def membership(model: Prepared, xp: Any = jnp) -> Any:
    """1 where a bin belongs to a channel [bin, channel]."""
    n_channels = model.logs.shape[-1] // model.nominal.shape[0]
    return (model.channels[:, None] == xp.arange(n_channels)).astype(xp.float64)


def _curvature(
    model: Prepared,
    parts: _Expansion,
    row_slope: Any,
    own_alpha: Any,
    carried: Any,
    bend: Any,
    xp: Any,
) -> Curvature:
    """The Hessian in parts; `own_alpha` holds the terms of ∂²/∂α² beyond products of slopes."""
    n_alphas = model.blocks[0]
    shift_slope = (
        parts.basis.dg[:, None, None] * model.shifts[0]
        + parts.basis.df[:, None, None] * model.shifts[1]
    )
    by_shift = parts.multiplier * shift_slope  # M d'
    by_rate = parts.cells * _by_slot(model, parts.log_slope)[:, :, model.channels]  # ν l'
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
    second = xp.concatenate(
        [
            xp.concatenate([half + half.T, mixed[:n_alphas]], axis=1),
            mixed.T,
        ]
    )
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


def own_curvature(parts: Curvature, xp: Any = jnp) -> Any:
    """The diagonal of the Hessian."""
    dense = xp.sum(parts.stiffness * parts.bins**2, axis=1) + xp.diagonal(parts.second)
    gamma = parts.stiffness * parts.bins_gamma**2
    return xp.concatenate([dense, gamma]) + parts.constraint


def dense_hessian(parts: Curvature, xp: Any = jnp) -> Any:
    """The Hessian as one matrix over all internal parameters."""
    dense, coupling, diagonal = assemble(parts, 1.0, xp)
    return xp.block([[dense, coupling.T], [coupling, xp.diag(diagonal)]])
