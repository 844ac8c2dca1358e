"""Values at given parameters: expected data, likelihood, gradient, Hessian.

Parameters are a mapping of names (others at their init) or a vector in the order of
`model.parameter_names`; leading axes of a vector are also leading axes of the result. Data are main
counts, or main and auxiliary data, in pyhf's order; the default is the observed data.
devices: JAX devices (or their number) over which many parameter vectors are divided; default: all
of this process, if there are enough vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from firstlight.histfactory.array_types import Array, DataSet, Number, Numpy, Parameters
from firstlight.histfactory.closed_form import dense_hessian, evaluate
from firstlight.histfactory.devices import MIN_POINTS, Devices, devices_for
from firstlight.histfactory.engine import Engine, Traced, engine_for
from firstlight.histfactory.internal_order import data_of, data_vector, to_internal, to_public
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.likelihood import Data, Prepared, expected_counts
from firstlight.histfactory.likelihood import nll as plain_nll
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.model import Model
from firstlight.histfactory.numpy_or_jax import map_leaves, plain
from firstlight.histfactory.precision import in_float64
from firstlight.histfactory.programs import Program, over_leading_axes


@in_float64
def expected_data(
    model: Model, parameters: Parameters = None, include_auxdata: bool = True
) -> Array:
    """Expected counts of every bin, channel by channel, and the expected auxiliary data."""
    theta = to_internal(model, model.vector(parameters))
    engine = engine_for(model, theta)
    main = _program("expected", engine, theta)(engine.prepared, theta)
    xp = engine.xp
    tau = xp.asarray(engine.prepared.tau)
    aux = xp.where(tau > 0, tau * theta, theta)
    values = data_vector(model, Data(xp.asarray(main), aux))
    return values if include_auxdata else values[..., : model.n_bins]


@in_float64
@first_gradient_by("firstlight.histfactory.fit_gradients:nll")
def nll(
    model: Model, parameters: Parameters = None, data: DataSet = None, *, devices: Devices = None
) -> Number:
    """Negative log-likelihood with pyhf's constants; infinite where the likelihood is zero."""
    engine, theta, data = _arguments(model, parameters, data)
    value = _program("nll", engine, theta, devices)(engine.prepared, data, theta)
    return plain(value) + engine.constants(data)


@in_float64
def nll_and_gradient(
    model: Model, parameters: Parameters = None, data: DataSet = None, *, devices: Devices = None
) -> tuple[Number, Array]:
    """Negative log-likelihood and its gradient with respect to the parameters, in closed form."""
    engine, theta, data = _arguments(model, parameters, data)
    value, gradient = _program("nll_and_gradient", engine, theta, devices)(
        engine.prepared, data, theta
    )
    return plain(value) + engine.constants(data), to_public(model, gradient)


def gradient(
    model: Model, parameters: Parameters = None, data: DataSet = None, *, devices: Devices = None
) -> Array:
    """Gradient of the negative log-likelihood with respect to the parameters, in closed form."""
    return nll_and_gradient(model, parameters, data, devices=devices)[1]


@in_float64
def hessian(
    model: Model, parameters: Parameters = None, data: DataSet = None, *, devices: Devices = None
) -> Array:
    """Hessian of the negative log-likelihood with respect to the parameters, in closed form."""
    engine, theta, data = _arguments(model, parameters, data)
    matrix = _program("hessian", engine, theta, devices)(engine.prepared, data, theta)
    positions = model.about.structure.positions
    return plain(matrix)[..., positions[:, None], positions]


def _arguments(model: Model, parameters: Parameters, data: DataSet) -> tuple[Engine, Array, Data]:
    theta = to_internal(model, model.vector(parameters))
    observed = data_of(model, data)
    traced = data is not None and not isinstance(data, np.ndarray)
    return engine_for(model, theta, observed if traced else None), theta, observed


def _nll_and_gradient(
    prepared: Prepared, data: Data, theta: Array, xp: Numpy
) -> tuple[Array, Array]:
    at = evaluate(prepared, data, theta, curvature=False, xp=xp)
    return at.nll, at.gradient


def _hessian(prepared: Prepared, data: Data, theta: Array, xp: Numpy) -> Array:
    curvature = evaluate(prepared, data, theta, xp=xp).curvature
    assert curvature is not None
    return dense_hessian(curvature, xp)


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "expected": expected_counts,
    "nll": plain_nll,
    "nll_and_gradient": _nll_and_gradient,
    "hessian": _hessian,
}


def _program(
    name: str, engine: Engine, theta: Array, devices: Devices = None
) -> Callable[..., Any]:
    """The function mapped over the leading axes of `theta`, compiled or in the caller's program."""
    leading = np.shape(theta)[:-1]
    program = _mapped(name, len(leading))
    if isinstance(engine, Traced):
        return partial(program.function, xp=jnp)
    rows = math.prod(leading)
    if leading and _mapped(name, 1).is_due(engine.prepared, rows):
        chosen = devices_for(rows, devices, MIN_POINTS)
        if len(chosen) > 1:
            return partial(_on_devices, _mapped(name, 1), leading, chosen)
    return partial(program, calls=max(1, rows))


def _on_devices(
    program: Program, leading: tuple[int, ...], devices: tuple[jax.Device, ...], *arrays: Any
) -> Any:
    *rest, theta = arrays
    found = program.on_devices(*rest, theta.reshape(-1, theta.shape[-1]), devices=devices)
    return map_leaves(lambda a: a.reshape(*leading, *a.shape[1:]), found)


@cache
def _mapped(name: str, axes: int) -> Program:
    evaluations = 1.0 if name == "hessian" else 0.3
    return Program(over_leading_axes(_FUNCTIONS[name], axes), evaluations)
