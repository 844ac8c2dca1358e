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
    shape = (-1, *(1,) * (deviations.ndim - 2))
    above, below = _code4_basis(alpha), _code4_basis(-alpha)
    order = []
    for derivative, sign in enumerate((1, -1, 1)):
        u = [xp.reshape(p, shape) for p in above[derivative]]
        v = [xp.reshape(sign * p, shape) for p in below[derivative]]
        order.append(
            deviations[0] * u[0]
            + (1 + deviations[0]) * logs[0] * (u[1] + logs[0] * u[2])
            + deviations[1] * v[0]
            + (1 + deviations[1]) * logs[1] * (v[1] + logs[1] * v[2])
        )
    return 1 + order[0], order[1], order[2]


def code4_slopes(deviations: Array, logs: Array, alpha: Array, xp: Numpy) -> tuple[Array, Array]:
    """Derivatives of `code4` with respect to `deviations` and `logs`, in their shape."""
    shape = (-1, *(1,) * (deviations.ndim - 2))
    above, below = _code4_basis(alpha)[0], _code4_basis(-alpha)[0]
    u = [xp.reshape(xp.stack(pair), (2, *shape)) for pair in zip(above, below, strict=True)]
    return u[0] + logs * (u[1] + logs * u[2]), (1 + deviations) * (u[1] + 2 * logs * u[2])


def _code4_basis(x: Array) -> tuple[tuple[Array, Array, Array], ...]:
    """u₀, u₁, u₂ and their first and second derivatives.

    At x = 1, u₀ has value 1, u₁ slope 1 and u₂ curvature 1; all their other values and derivatives
    at ±1 and 0 are zero.
    """
    s = x * x
    return (
        (
            x * (15 + x * (24 + x * (-10 + x * (-24 + x * (3 + 8 * x))))) / 16,
            x * (-7 + x * (-9 + x * (10 + x * (14 + x * (-3 - 5 * x))))) / 16,
            x * (1 + x) * (1 - s) ** 2 / 16,
        ),
        (
            (15 + x * (48 + x * (-30 + x * (-96 + x * (15 + 48 * x))))) / 16,
            (-7 + x * (-18 + x * (30 + x * (56 + x * (-15 - 30 * x))))) / 16,
            (1 + x * (2 + x * (-6 + x * (-8 + x * (5 + 6 * x))))) / 16,
        ),
        (
            (48 + x * (-60 + x * (-288 + x * (60 + 240 * x)))) / 16,
            (-18 + x * (60 + x * (168 + x * (-60 - 150 * x)))) / 16,
            (2 + x * (-12 + x * (-24 + x * (20 + 30 * x)))) / 16,
        ),
    )
