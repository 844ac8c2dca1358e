"""The interpolation codes of HistFactory: a template as a function of its nuisance parameter α.

Additive codes (0, 2, 4p: `histosys`) share one form. With the half sum and the scaled half
difference of the two shifts, `S = (up + down)/2` and `A = (up - down)/16`,

    shift(α) = S·g(α) + A·f(α),

so a code is two functions of α alone, and all templates together are a matrix product.
Multiplicative codes (1, 4: `normsys`) are `hi^α` or `lo^-α`; code 4 replaces them by a polynomial
of degree six inside |α| < 1 that meets them with two derivatives.

The definitions are those of the HistFactory paper (CERN-OPEN-2012-016) and of pyhf, except that
pyhf 0.7.6 deviates from both in code 2 for α < -1 (its pull request 2668 corrects this). Code 2 is
defined with a jump at α = ±1: its lines outside, (b + 2a)(α - 1) and (b - 2a)(α + 1), have the
slope with which its parabola aα² + bα ends, but begin at zero. ROOT's code 2 is continuous.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from firstlight.histfactory.array_types import Array, Numpy

NORMSYS_CODES = ("code1", "code4")
HISTOSYS_CODES = ("code0", "code2", "code4p")


class Basis(NamedTuple):
    """g and f of an additive code with their first two derivatives, each an array over α."""

    g: Array
    f: Array
    dg: Array
    df: Array
    ddg: Array
    ddf: Array


def additive_basis(code: str, alpha: Array, xp: Numpy) -> Basis:
    """The functions g and f of `code` at every α."""
    one, zero = xp.ones_like(alpha), xp.zeros_like(alpha)
    # At a kink, take the slope of the right side; zero would look like a minimum.
    sign = xp.where(alpha >= 0, 1.0, -1.0)
    if code == "code0":
        return Basis(alpha, 8 * sign * alpha, one, 8 * sign, zero, zero)
    if code == "code4p":
        inside, square = xp.abs(alpha) < 1, alpha * alpha
        return Basis(
            alpha,
            xp.where(inside, square * (15 - square * (10 - 3 * square)), 8 * sign * alpha),
            one,
            xp.where(inside, alpha * (30 - square * (40 - 18 * square)), 8 * sign),
            zero,
            xp.where(inside, 30 - square * (120 - 90 * square), 0.0),
        )
    above, below = alpha > 1, alpha < -1
    return Basis(  # code2
        xp.where(above, alpha - 1, xp.where(below, alpha + 1, alpha)),
        xp.where(above, 16 * (alpha - 1), xp.where(below, -16 * (alpha + 1), 8 * alpha * alpha)),
        one,
        xp.where(above, 16.0, xp.where(below, -16.0, 16 * alpha)),
        zero,
        xp.where(above | below, 0.0, 16.0),
    )


def code4(deviations: Array, logs: Array, alpha: Array, xp: Numpy) -> tuple[Array, Array, Array]:
    """Factor of code 4 inside |α| < 1 with its first and second derivative.

    deviations: hi - 1 and lo - 1, each [α, ...]; logs: ln hi and ln lo, likewise.

    The polynomial 1 + Σ aᵢαⁱ that has the value, slope and curvature of hi^α and lo^-α at ±1 is,
    with three polynomials u of α alone and l = ln hi,

        1 + (hi - 1)·u₀(α) + hi·l·(u₁(α) + l·u₂(α)) + the same for lo at -α.

    In this form an absent systematic (hi = lo = 1) is exactly one, with derivatives exactly zero.
    """
    u, scaled = _code4_basis(alpha, deviations.ndim, xp), (1 + deviations) * logs

    def combined(order: int | slice) -> Array:
        above, below = (
            deviations[side] * u[order, 0, side]
            + scaled[side] * (u[order, 1, side] + logs[side] * u[order, 2, side])
            for side in range(2)
        )
        return above + below

    # One expression compiles sooner; in NumPy its arrays would not fit into the cache.
    value, slope, bend = map(combined, range(3)) if xp is np else combined(slice(None))
    return 1 + value, slope, bend


def code4_slopes(deviations: Array, logs: Array, alpha: Array, xp: Numpy) -> tuple[Array, Array]:
    """Derivatives of `code4` with respect to `deviations` and `logs`, in their shape."""
    u = _code4_basis(alpha, deviations.ndim, xp)[0]
    return u[0] + logs * (u[1] + logs * u[2]), (1 + deviations) * (u[1] + 2 * logs * u[2])


def _code4_basis(alpha: Array, axes: int, xp: Numpy) -> Array:
    """u₀, u₁, u₂ at α and at -α, and their first two derivatives with respect to α.

    Returns [order of the derivative, u, α or -α, α, ...], the latter with `axes` - 2 axes of one.
    At x = 1, u₀ has value 1, u₁ slope 1 and u₂ curvature 1; all their other values and derivatives
    at ±1 and 0 are zero.
    """
    powers = np.arange(7)
    derivatives = [np.array(_CODE4)]
    for _ in range(2):
        derivatives.append(np.roll(derivatives[-1] * powers, -1, axis=-1))
    signs = np.array([[1, 1], [1, -1], [1, 1]])  # of the derivatives of u(-α)
    coefficients = np.stack(derivatives)[:, :, None] * signs[:, None, :, None] / 16
    x = xp.reshape(xp.stack([alpha, -alpha]), (2, -1, *(1,) * (axes - 2)))
    total: Array = 0.0
    for k in reversed(powers):
        total = total * x + coefficients[..., k].reshape(3, 3, 2, *(1,) * (axes - 1))
    return total


#: Coefficients of 16 u₀, 16 u₁ and 16 u₂, from the constant to the sixth power.
_CODE4 = ((0, 15, 24, -10, -24, 3, 8), (0, -7, -9, 10, 14, -3, -5), (0, 1, 1, -2, -2, 1, 1))
