"""The likelihood of binned data in its plain form, suitable for automatic differentiation.

It is differentiable with respect to all numbers of a model, including factors of zero. The fit uses
`closed_form`; the tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from firstlight.histfactory.array_types import Array, Numpy
from firstlight.histfactory.interpolation import additive_basis, code4
from firstlight.histfactory.lazy_jax import custom_jvp, jax, jnp, pytree
from firstlight.histfactory.precision import float64_scope

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

    from firstlight.histfactory.model import Arrays, Structure

#: A factor closer to zero than this is replaced by it where the closed form divides by the factor.
#: The product of two such factors and a yield is still far from the smallest normal number.
TINY_FACTOR = 1e-100
#: A smaller expectation counts as zero; `TINY_FACTOR` times any yield is smaller.
TINY_YIELD = 1e-80


@pytree
@dataclass(frozen=True, eq=False)
class Prepared:
    """A model ready for evaluation. All fields are float arrays, so JAX can trace all of them."""

    nominal: Array  # [slot, bin]
    shifts: Array  # S and A of the additive codes, for the first α [2, α, slot, bin]
    deviations: Array  # hi - 1 and lo - 1, for the last α [2, α, row]
    logs: Array  # ln hi and ln lo, likewise [2, α, row]
    factor_mask: Array  # [φ, slot, bin]
    carries_gamma: Array  # [slot, bin]
    channel_of_bin: Array  # [bin]
    weight: Array  # 1/σ² of normal constraints, else 0 [parameter]
    tau: Array  # rate of Poisson constraints, else 0 [parameter]
    constraint_constant: Array  # Σ ln σ√2π
    codes: tuple[str, str] = field(metadata={"static": True}, default=("code4", "code4p"))

    def __getstate__(self) -> dict[str, object]:
        """Leave out copies on devices: unpickling a result must not import JAX."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def blocks(self) -> tuple[int, int]:
        """Where φ and γ begin in a parameter vector."""
        n_factors, n_bins = self.factor_mask.shape[0], self.nominal.shape[1]
        begin_gamma = self.weight.shape[0] - n_bins
        return begin_gamma - n_factors, begin_gamma

    @cached_property
    def kind(self) -> Hashable:
        """The key of compiled programs: all shapes, and the interpolation codes."""
        shapes = (self.shifts.shape, self.logs.shape, self.factor_mask.shape, self.weight.shape)
        return (*shapes, self.codes)

    @property
    def cells(self) -> int:
        """Cells times α and φ: a measure of the cost of an evaluation."""
        return int(math.prod(self.nominal.shape)) * self.blocks[1]

    @cached_property
    def is_small(self) -> bool:
        """Whether BLAS computes with it on one thread in any case.

        OpenBLAS splits products of a matrix of 9216 numbers and a vector, and of matrices of 64
        rows; nothing was split in fits of models with seven times these cells.
        """
        return self.cells <= 4096 and self.blocks[1] <= 32

    @cached_property
    def on_device(self) -> Prepared:
        """A copy on JAX's default device, for compiled programs."""
        with float64_scope(), jax.ensure_compile_time_eval():
            copy: Prepared = jax.device_put(self)
            return copy

    def on(self, sharding: NamedSharding) -> Prepared:
        """A copy on the devices of a sharding, made once."""
        if sharding not in self._copies:
            with float64_scope():
                self._copies[sharding] = jax.device_put(self, sharding)
        return self._copies[sharding]

    @cached_property
    def _copies(self) -> dict[NamedSharding, Prepared]:
        return {}

    @property
    def channels(self) -> Array:
        """Channel of every bin, as an index."""
        return self.channel_of_bin.astype(np.int32)


class Data(NamedTuple):
    """Observed or simulated data: main counts and auxiliary data in the internal order."""

    main: Array  # [bin]
    aux: Array  # [parameter]


def prepare(
    arrays: Arrays, structure: Structure, codes: tuple[str, str], xp: Numpy = jnp
) -> Prepared:
    """Compute everything that does not depend on the parameters."""
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


def yields(model: Prepared, theta: Array, xp: Numpy = jnp) -> Array:
    """Expected yield of every cell [slot, bin]."""
    begin_phi, begin_gamma = model.blocks
    alpha, phi, gamma = theta[:begin_phi], theta[begin_phi:begin_gamma], theta[begin_gamma:]
    shape_alpha, rate_alpha = shape_and_rate_alphas(model, alpha)
    basis = additive_basis(model.codes[1], shape_alpha, xp)
    shifted = model.nominal + xp.tensordot(xp.stack([basis.g, basis.f]), model.shifts, 2)
    inside, exponent = inside_and_exponent(model, rate_alpha, xp)
    value, _, _ = code4(model.deviations, model.logs, rate_alpha, xp)
    value = xp.where(inside[:, None], value, 1.0)
    norm = (np.prod(value, axis=0) if xp is np else _product(value)) * xp.exp(exponent)
    factors = xp.prod(xp.where(model.factor_mask > 0, phi[:, None, None], 1.0), axis=0)
    gammas = xp.where(model.carries_gamma > 0, gamma, 1.0)
    # A matrix product instead of indexing: its transpose keeps 64 bits in any program.
    return shifted * (by_slot(model, norm) @ membership(model, xp).T) * factors * gammas


def expected_counts(model: Prepared, theta: Array, xp: Numpy = jnp) -> Array:
    """Expected main counts [bin]."""
    return xp.sum(yields(model, theta, xp), axis=0)


def shape_and_rate_alphas(model: Prepared, alpha: Array) -> tuple[Array, Array]:
    """The α with shape templates (the first ones), and those with rates (the last ones)."""
    n_shapes, n_rates = model.shifts.shape[1], model.logs.shape[1]
    return alpha[:n_shapes], alpha[len(alpha) - n_rates :]


def by_slot(model: Prepared, of_rows: Array) -> Array:
    """[slot, channel] from rows."""
    n_slots, n_rows = model.nominal.shape[0], of_rows.shape[-1]
    return of_rows.reshape(*of_rows.shape[:-1], n_slots, n_rows // n_slots)


def inside_and_exponent(model: Prepared, alpha: Array, xp: Numpy = jnp) -> tuple[Array, Array]:
    """Which α use the polynomial, and the summed logarithms of the factors of all others.

    This takes one exponential per (sample, channel) instead of one per systematic.
    """
    inside = xp.abs(alpha) < (1.0 if model.codes[0] == "code4" else 0.0)
    above = xp.where(inside, 0.0, xp.maximum(alpha, 0.0))
    below = xp.where(inside, 0.0, xp.maximum(-alpha, 0.0))
    return inside, xp.tensordot(xp.stack([above, below]), model.logs, 2)


@custom_jvp
def _product(factors: Array) -> Array:
    """Product over the first axis of factors that are not zero."""
    return jnp.prod(factors, axis=0)


@_product.defjvp
def _product_jvp(primals: Array, tangents: Array) -> Array:
    value = _product(primals[0])
    return value, value * jnp.sum(tangents[0] / primals[0], axis=0)


def membership(model: Prepared, xp: Numpy = jnp) -> Array:
    """1 where a bin belongs to a channel [bin, channel]."""
    n_channels = model.logs.shape[-1] // model.nominal.shape[0]
    return (model.channels[:, None] == xp.arange(n_channels)).astype(xp.float64)


def nll(model: Prepared, data: Data, theta: Array, xp: Numpy = jnp) -> Array:
    """Negative log-likelihood relative to a model that fits every count exactly.

    Relative, because differences then keep their digits even at a million events; `saturated_nll`
    is the remainder. Differentiable with respect to all arguments.
    """
    return nll_at(model, data, theta, expected_counts(model, theta, xp), xp)


def nll_at(model: Prepared, data: Data, theta: Array, expected: Array, xp: Numpy) -> Array:
    """`nll` for known expected counts."""
    main = xp.sum(_poisson_nll(data.main, expected, xp))
    pull = xp.where(model.weight > 0, data.aux - theta, 0.0)
    poisson = xp.where(model.tau > 0, _poisson_nll(data.aux, model.tau * theta, xp), 0.0)
    constraints = xp.sum(0.5 * model.weight * pull * pull + poisson) + model.constraint_constant
    return main + constraints


def _poisson_nll(observed: Array, expected: Array, xp: Numpy = jnp) -> Array:
    """ν - n - n ln(ν/n); ν where n = 0; infinite where n > 0 is impossible."""
    counted = observed > 0
    possible = expected > TINY_YIELD
    n = xp.where(counted, observed, 1.0)
    log_ratio = xp.log(xp.where(counted & possible, expected / n, 1.0))
    value = expected - xp.where(counted, n + n * log_ratio, 0.0)
    return xp.where(counted & ~possible, xp.inf, value)


def saturated_nll(tau: Array, data: Data, xp: Numpy = jnp) -> Array:
    """Σ n - n ln n + ln n! over main and Poisson auxiliary data: the NLL that `nll` leaves out."""
    # NumPy need not compute the terms that are masked; XLA cannot leave them out.
    aux = data.aux[..., np.asarray(tau) > 0] if xp is np else xp.where(tau > 0, data.aux, 0.0)
    return stirling_rest(data.main, xp).sum(-1) + stirling_rest(aux, xp).sum(-1)


def stirling_rest(n: Array, xp: Numpy) -> Array:
    """n - n ln n + ln n!, without cancellation: ½ ln 2πn and the series of Γ beyond.

    The series is for n ≥ 16 (error 1e-16); smaller n are brought there by ln n! = ln (n+16)! - Σ.
    """
    positive = xp.where(n > 0, n, 1.0)
    series = _stirling_series(1 / xp.where(positive > 16, positive, 16.0))
    rest = xp.where(n > 0, 0.5 * xp.log(2 * np.pi * positive) + series, 0.0)
    is_small = (n > 0) & (n <= 16)
    if xp is not np:
        return xp.where(is_small, _rest_of_small(positive, xp), rest)
    rest[is_small] = _rest_of_small(positive[is_small], np)
    return rest


def _rest_of_small(n: Array, xp: Numpy) -> Array:
    large = n + 16.0
    series = _stirling_series(1 / large)
    log_factorial_large = large * xp.log(large) - large + 0.5 * xp.log(2 * np.pi * large) + series
    return n - n * xp.log(n) + log_factorial_large - sum(xp.log(n + k) for k in range(1, 17))


def _stirling_series(x: Array) -> Array:
    """The remainder of Stirling's formula for ln n!, in x = 1/n; Eq. 5.11.1 of dlmf.nist.gov."""
    s = x * x
    return x * (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188))))
