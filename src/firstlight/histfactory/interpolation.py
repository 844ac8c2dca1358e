"""How a template moves with its nuisance parameter α: the interpolation codes of HistFactory.

Additive codes (0, 2, 4p: `histosys`) share one form. With the half sum and the scaled half
difference of the two shifts, `S = (up + down)/2` and `A = (up - down)/16`,

    shift(α) = S·g(α) + A·f(α),

so a code is two functions of α alone, and all templates together are a matrix product.
Multiplicative codes (1, 4: `normsys`) are `hi^α` or `lo^-α`; code 4 replaces them by a polynomial
of degree six inside |α| < 1 that meets them with two derivatives.

The definitions agree with pyhf 0.7.6, including the jumps of its code 2 at α = ±1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NORMSYS_CODES = ("code1", "code4")
HISTOSYS_CODES = ("code0", "code2", "code4p")


class Basis(NamedTuple):
    """g and f of an additive code with two derivatives, each an array over α."""

    g: Any
    f: Any
    dg: Any
    df: Any
    ddg: Any
    ddf: Any


def additive_basis(code: str, alpha: Any) -> Basis:
    """The functions g and f of `code` at every α."""
    import jax.numpy as jnp

    one, zero = jnp.ones_like(alpha), jnp.zeros_like(alpha)
    sign = jnp.sign(alpha)
    if code == "code0":
        return Basis(alpha, 8 * sign * alpha, one, 8 * sign, zero, zero)
    if code == "code4p":
        inside, square = jnp.abs(alpha) < 1, alpha * alpha
        return Basis(
            alpha,
            jnp.where(inside, square * (15 - square * (10 - 3 * square)), 8 * sign * alpha),
            one,
            jnp.where(inside, alpha * (30 - square * (40 - 18 * square)), 8 * sign),
            zero,
            jnp.where(inside, 30 - square * (120 - 90 * square), 0.0),
        )
    above, below = alpha > 1, alpha < -1
    return Basis(  # code2
        jnp.where(above, alpha - 1, alpha),
        jnp.where(above, 16 * (alpha - 1), jnp.where(below, -16 * alpha, 8 * alpha * alpha)),
        one,
        jnp.where(above, 16.0, jnp.where(below, -16.0, 16 * alpha)),
        zero,
        jnp.where(above | below, 0.0, 16.0),
    )


def code4_coefficients(xp: Any, lo: Any, hi: Any, log_lo: Any, log_hi: Any) -> Any:
    """Coefficients a₁…a₆ of the polynomial 1 + Σ aᵢ αⁱ, stacked on a new first axis.

    They solve the six conditions value, slope and curvature at α = ±1 against hi^α and lo^-α.
    """
    # Even and odd parts of value, slope and curvature at ±1.
    value_even, value_odd = (hi + lo) / 2 - 1, (hi - lo) / 2
    slope_hi, slope_lo = hi * log_hi, -lo * log_lo
    slope_even, slope_odd = (slope_hi - slope_lo) / 2, (slope_hi + slope_lo) / 2
    bend_hi, bend_lo = slope_hi * log_hi, -slope_lo * log_lo
    bend_even, bend_odd = (bend_hi + bend_lo) / 2, (bend_hi - bend_lo) / 2
    return xp.stack(
        [
            (15 * value_odd - 7 * slope_odd + bend_odd) / 8,
            (24 * value_even - 9 * slope_even + bend_even) / 8,
            (-5 * value_odd + 5 * slope_odd - bend_odd) / 4,
            (-12 * value_even + 7 * slope_even - bend_even) / 4,
            (3 * value_odd - 3 * slope_odd + bend_odd) / 8,
            (8 * value_even - 5 * slope_even + bend_even) / 8,
        ]
    )


def polynomial(coefficients: Any, alpha: Any) -> tuple[Any, Any, Any]:
    """1 + Σ aᵢ αⁱ with its first and second derivative; `alpha` broadcasts against each aᵢ."""
    a1, a2, a3, a4, a5, a6 = coefficients
    value = 1 + alpha * (
        a1 + alpha * (a2 + alpha * (a3 + alpha * (a4 + alpha * (a5 + alpha * a6))))
    )
    slope = a1 + alpha * (
        2 * a2 + alpha * (3 * a3 + alpha * (4 * a4 + alpha * (5 * a5 + alpha * (6 * a6))))
    )
    bend = 2 * a2 + alpha * (6 * a3 + alpha * (12 * a4 + alpha * (20 * a5 + alpha * (30 * a6))))
    return value, slope, bend
