"""First derivatives of profiled likelihoods in NumPy, in closed form: nothing traced or compiled.

These are the rules of `profiling` in reverse mode. The value at a minimum changes only as the
likelihood does at fixed parameters. Its position moves by dθ̂ = -H⁻¹ (∂²NLL/∂θ∂x) dx, so weights v
on θ̂ give the derivative

    -∂/∂x (u · ∂NLL/∂θ) = -d/dε ∂NLL/∂x (θ̂ + ε u),    u = H⁻¹ v,

a directional derivative along u. It is taken with an imaginary ε, which is exact to rounding.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from firstlight.histfactory.array_slopes import array_slopes, expectation_slopes
from firstlight.histfactory.array_types import Array
from firstlight.histfactory.closed_form import assemble, evaluate
from firstlight.histfactory.likelihood import Data, Prepared, stirling_rest
from firstlight.histfactory.linear_systems import factorise, multiply, solve
from firstlight.histfactory.model import Arrays, Model
from firstlight.histfactory.newton import Minimum, Problem
from firstlight.histfactory.numpy_or_jax import map_leaves

#: The imaginary step. Its square is far below rounding; it is far above the smallest double.
_STEP = 1e-30


class Slope(NamedTuple):
    """Derivatives of one number with respect to a prepared model, data and fixed parameters."""

    nominal: Array
    shifts: Array
    deviations: Array
    logs: Array
    weight: Array
    tau: Array
    constraint_constant: Array
    main: Array
    aux: Array
    start: Array  # with respect to the values of fixed parameters [parameter]
    mu: Array  # with respect to the tested signal strength


_NUMBERS = Slope._fields[:7]


def zero_slope(model: Prepared) -> Slope:
    """The slope of a constant."""
    bins, n = np.zeros(model.nominal.shape[1]), np.zeros(len(model.weight))
    numbers = [np.zeros(np.shape(getattr(model, name))) for name in _NUMBERS]
    return Slope._make([*numbers, bins, n, n.copy(), np.zeros(())])


def weighted_sum(*terms: tuple[float, Slope]) -> Slope:
    """The slope of a weighted sum; terms: (weight, slope)."""
    weights = [weight for weight, _ in terms]

    def add(*parts: Array) -> Array:
        return sum(w * part for w, part in zip(weights, parts, strict=True))

    total: Slope = map_leaves(add, *(slope for _, slope in terms))
    return total


def slope_of_value(
    model: Prepared, problem: Problem, found: Minimum, tested: int | None = None
) -> Slope:
    """The slope of the likelihood at a minimum. tested: the parameter that is fixed at μ."""
    if not np.isfinite(found.nll):
        return zero_slope(model)
    at, by_model, by_data = array_slopes(model, problem.data, found.theta, np)
    start = np.where(np.asarray(problem.fixed) > 0, at.gradient, 0.0)
    return with_tested_strength(slope_from(by_model, by_data, start), tested)


def slope_of_position(model: Prepared, problem: Problem, found: Minimum, weights: Array) -> Slope:
    """The slope of the weighted sum of the parameters at a minimum."""
    curvature = evaluate(model, problem.data, found.theta, xp=np).curvature
    assert curvature is not None
    hessian = assemble(curvature, 1.0, np)
    factors = factorise(hessian, found.free, np)
    if not np.all(np.isfinite(factors.cholesky)):  # no minimum; the fit's status says so
        return zero_slope(model)
    along = solve(factors, weights, np)
    _, by_model, by_data = array_slopes(model, problem.data, found.theta + _STEP * 1j * along, np)
    held = np.where(np.asarray(problem.fixed) > 0, weights - multiply(hessian, along, np), 0.0)
    bent: Slope = map_leaves(lambda a: -np.imag(a) / _STEP, slope_from(by_model, by_data, held))
    return bent._replace(start=held)


def through_asimov(
    model: Prepared, theta: Array, asimov: Data, slope: Slope
) -> tuple[Slope, Array]:
    """Apply the chain rule to a slope whose data are the Asimov data of `theta`.

    Returns the slope without its dependence on the data, and the derivative with respect to
    `theta`.
    """
    at = evaluate(model, asimov, theta, xp=np)
    assert at.curvature is not None
    poisson = model.tau > 0
    of_bins, of_aux = slope.main, slope.aux
    by_model = expectation_slopes(model, at, theta, of_bins, np)
    by_theta = np.concatenate([at.curvature.bins @ of_bins, at.curvature.bins_gamma * of_bins])
    by_theta += np.where(poisson, model.tau, 1.0) * of_aux
    by_model["tau"] = np.where(poisson, theta * of_aux, 0.0)
    added = {name: getattr(slope, name) + part for name, part in by_model.items()}
    none = {"main": np.zeros_like(of_bins), "aux": np.zeros_like(of_aux)}
    return slope._replace(**added, **none), by_theta


def slope_of_constants(model: Prepared, data: Data) -> Slope:
    """The slope of the part of the likelihood that depends on the data alone."""
    counts = np.concatenate([data.main, np.where(model.tau > 0, data.aux, 0.0)])
    slopes = np.imag(stirling_rest(counts + _STEP * 1j, np)) / _STEP
    slopes = np.where(counts > 0, slopes, 0.0)
    main, aux = np.split(slopes, [len(data.main)])
    return zero_slope(model)._replace(main=main, aux=aux)


def slope_of_floor(model: Prepared) -> Slope:
    """The slope of the likelihood at a point where data and constraints fit exactly."""
    return zero_slope(model)._replace(constraint_constant=np.ones(()))


def slopes_by_array(model: Model, slope: Slope, from_init: Array) -> dict[str, Array]:
    """A slope with respect to the arrays of a model: the transpose of `likelihood.prepare`.

    from_init: 1 where a fixed parameter takes its value from the model's `init`.
    """
    structure, arrays = model.about.structure, model.arrays
    normal, sigma = structure.normal, np.asarray(arrays.sigma)
    half_sum, scaled = slope.shifts * structure.histosys_used
    rates = np.stack([np.asarray(arrays.normsys_hi), np.asarray(arrays.normsys_lo)])
    of_rates = (slope.deviations.reshape(rates.shape)) + slope.logs.reshape(rates.shape) / rates
    of_sigma = normal * (slope.constraint_constant - 2 * slope.weight / sigma**2) / sigma
    known = {
        "nominal": slope.nominal - scaled.sum(0) / 8,
        "normsys_hi": of_rates[0],
        "normsys_lo": of_rates[1],
        "histosys_hi": half_sum / 2 + scaled / 16,
        "histosys_lo": scaled / 16 - half_sum / 2,
        "observed": slope.main,
        "auxdata": slope.aux,
        "sigma": of_sigma,
        "tau": structure.poisson * slope.tau,
        "init": slope.start * from_init,
    }
    none = {name: np.zeros_like(slope.start) for name in ("lower", "upper")}
    return {f.name: (known | none)[f.name] for f in fields(Arrays)}


def tail_slope(z: float) -> float:
    """Derivative of the probability of a standard normal above z."""
    return -math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def slope_from(by_model: Prepared, by_data: Data, start: Array) -> Slope:
    numbers = [getattr(by_model, name) for name in _NUMBERS]
    return Slope._make([*numbers, by_data.main, by_data.aux, start, np.zeros(())])


def with_tested_strength(slope: Slope, tested: int | None) -> Slope:
    """Move the derivative with respect to the `tested` parameter's fixed value to `mu`."""
    if tested is None:
        return slope
    start: Array = slope.start.copy()
    start[tested] = 0.0
    return slope._replace(start=start, mu=slope.start[tested])
