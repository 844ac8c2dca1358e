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
from functools import cache, partial, wraps
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from firstlight.histfactory.array_types import Array, DataSet, Number, Numpy, Parameters
from firstlight.histfactory.closed_form import dense_hessian, evaluate
from firstlight.histfactory.devices import MIN_POINTS, Devices, devices_for
from firstlight.histfactory.engine import Engine, Traced, engine_for
from firstlight.histfactory.internal_order import data_of, data_vector, to_internal, to_public
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.likelihood import (
    TINY_FACTOR,
    TINY_YIELD,
    Data,
    Prepared,
    expected_counts,
)
from firstlight.histfactory.likelihood import nll as plain_nll
from firstlight.histfactory.linear_results import first_gradient_by
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.numpy_or_jax import map_leaves, plain
from firstlight.histfactory.precision import in_float64
from firstlight.histfactory.programs import Program, over_leading_axes

F = TypeVar("F", bound=Callable[..., Any])
#: Nominal yield; α, half sum and scaled difference of every shift; positions of its factors.
_Cell: TypeAlias = "tuple[float, list[tuple[int, float, float]], list[int]]"
#: With more shifts and factors than this, a compiled program is faster.
_MAX_ENTRIES = 300


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


def _in_floats(of_small: Callable[[SmallLikelihood, Floats], Any]) -> Callable[[F], F]:
    """Decorate a function that a `SmallLikelihood` also computes, for the observed data."""

    def decorate(function: F) -> F:
        @wraps(function)
        def wrapped(
            model: Model, parameters: Parameters = None, data: DataSet = None, **devices: Devices
        ) -> Any:
            if data is None and type(parameters) is np.ndarray:
                small = small_likelihood(model)
                if small is not None and small.takes(parameters):
                    try:
                        return of_small(small, parameters)
                    except ArithmeticError:  # NumPy distinguishes zeros, infinities and NaN
                        return function(model, parameters)
            return function(model, parameters, data, **devices)

        return cast(F, wrapped)

    return decorate


@_in_floats(lambda small, parameters: small.nll(parameters))
@in_float64
@first_gradient_by("firstlight.histfactory.fit_gradients:nll")
def nll(
    model: Model, parameters: Parameters = None, data: DataSet = None, *, devices: Devices = None
) -> Number:
    """Negative log-likelihood with pyhf's constants; infinite where the likelihood is zero."""
    engine, theta, data = _arguments(model, parameters, data)
    value = _program("nll", engine, theta, devices)(engine.prepared, data, theta)
    return plain(value) + engine.constants(data)


@_in_floats(lambda small, parameters: small.nll_and_gradient(parameters))
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


def small_likelihood(model: Model) -> SmallLikelihood | None:
    """The likelihood of the observed data in plain floats, where that is the fastest way."""
    try:
        found: SmallLikelihood | None = model.__dict__["_small_likelihood"]
    except KeyError:
        usable = not model._is_traced and model.about.has_observations
        usable = usable and model.about.codes == ("code4", "code4p") and model._prepared.is_small
        found = SmallLikelihood(model) if usable else None
        if found is not None and found.entries > _MAX_ENTRIES:
            found = None
        model.__dict__["_small_likelihood"] = found
    return found


class _Rate(NamedTuple):
    """A `normsys` of one sample in one channel."""

    alpha: int  # whose parameter
    log_hi: float
    log_lo: float
    polynomial: tuple[float, ...]  # of code 4: coefficients of α to α⁶


class SmallLikelihood:
    """A likelihood of a few cells, computed in Python's own floats.

    A call of NumPy takes as long as some twenty operations on floats, and a call of a compiled
    program as long as hundreds. Parameters are in the public order.
    """

    def __init__(self, model: Model) -> None:
        prepared, data = model._prepared, model._observed_data
        begin_phi, begin_gamma = prepared.blocks
        n_channels = prepared.logs.shape[-1] // len(prepared.nominal)
        first_rate = begin_phi - prepared.logs.shape[1]
        place = {int(internal): i for i, internal in enumerate(model._order)}
        self._n = len(place)
        self._constant = float(prepared.constraint_constant) + model._observed_constants
        #: α of every additive basis, the factors that are parameters, and those that are not.
        self._alphas = [place.get(k, 0) for k in range(prepared.shifts.shape[1])]
        self._factors = [i for internal, i in place.items() if internal >= begin_phi]
        self._rates: list[_Rate] = []
        rates: list[list[int]] = [[] for _ in range(prepared.logs.shape[-1])]  # of every row
        for r, row in np.argwhere(prepared.logs.any(0)).tolist():
            rates[row].append(self._n + len(self._rates))
            logs, deviations = prepared.logs[:, r, row], prepared.deviations[:, r, row]
            log_hi, log_lo = logs.tolist()
            polynomial = _polynomial(deviations, logs)
            self._rates.append(_Rate(place[first_rate + r], log_hi, log_lo, polynomial))
        #: Observed count and cells of every bin; a cell is nominal yield, shifts and factors.
        self._bins: list[tuple[float, list[_Cell]]] = []
        for b, count in enumerate(data.main.tolist()):
            cells: list[_Cell] = []
            for s, nominal in enumerate(prepared.nominal[:, b].tolist()):
                shifts = prepared.shifts[:, :, s, b]
                shapes = [(k, *shifts[:, k].tolist()) for k in np.flatnonzero(shifts.any(0))]
                factors = list(rates[s * n_channels + int(prepared.channels[b])])
                phis = np.flatnonzero(prepared.factor_mask[:, s, b])
                factors += [place[begin_phi + int(k)] for k in phis]
                if prepared.carries_gamma[s, b]:
                    factors.append(place[begin_gamma + b])
                if nominal or shapes:
                    cells.append((nominal, shapes, factors))
            if cells or count:
                self._bins.append((count, cells))
        weight, tau, aux = (np.asarray(a) for a in (prepared.weight, prepared.tau, data.aux))
        of_aux = [(i, float(aux[p]), float(weight[p]), float(tau[p])) for p, i in place.items()]
        self._normal = [(i, a, width) for i, a, width, _ in of_aux if width]
        self._poisson = [(i, a, rate) for i, a, _, rate in of_aux if rate]

    @property
    def entries(self) -> int:
        """Shifts and factors of all cells: a measure of the time that it takes."""
        return sum(1 + len(s) + len(f) for _, cells in self._bins for _, s, f in cells)

    def takes(self, parameters: Floats) -> bool:
        """Whether it computes with these parameters."""
        return parameters.shape == (self._n,) and parameters.dtype.char == "d"

    def nll(self, parameters: Floats) -> float:
        """Negative log-likelihood with pyhf's constants; an ArithmeticError if it is not finite."""
        values = parameters.tolist()
        bases = [_additive(values[i]) for i in self._alphas]
        factors = values + [_rate_factor(rate, values[rate.alpha])[0] for rate in self._rates]
        total = self._constraints(values)
        for count, cells in self._bins:
            expected = 0.0
            for nominal, shifts, which in cells:
                cell = nominal
                for k, half_sum, scaled in shifts:
                    g, f, _ = bases[k]
                    cell += half_sum * g + scaled * f
                for i in which:
                    cell *= factors[i]
                expected += cell
            total += _poisson(count, expected)
        return _finite(total)

    def nll_and_gradient(self, parameters: Floats) -> tuple[float, Floats]:
        """The same and its gradient; an ArithmeticError also if a factor is zero."""
        values = parameters.tolist()
        for i in self._factors:
            if abs(values[i]) < TINY_FACTOR:
                raise ZeroDivisionError
        bases = [_additive(values[i]) for i in self._alphas]
        rates = [_rate_factor(rate, values[rate.alpha]) for rate in self._rates]
        factors = values + [value for value, _ in rates]
        by_factor, gradient = [0.0] * len(factors), [0.0] * self._n
        total = self._constraints(values, gradient)
        for count, cells in self._bins:
            expected, found = 0.0, []
            for nominal, shifts, which in cells:
                shifted, multiplier = nominal, 1.0
                for k, half_sum, scaled in shifts:
                    g, f, _ = bases[k]
                    shifted += half_sum * g + scaled * f
                for i in which:
                    multiplier *= factors[i]
                expected += shifted * multiplier
                found.append((shifted * multiplier, multiplier, shifts, which))
            total += _poisson(count, expected)
            slope = 1 - count / expected if count > 0 and expected > TINY_YIELD else 1.0
            for cell, multiplier, shifts, which in found:
                for k, half_sum, scaled in shifts:
                    by_alpha = multiplier * (half_sum + scaled * bases[k][2])
                    gradient[self._alphas[k]] += slope * by_alpha
                for i in which:
                    by_factor[i] += slope * cell
        for i in self._factors:
            gradient[i] += by_factor[i] / values[i]
        for i, (rate, (_, log_slope)) in enumerate(zip(self._rates, rates, strict=True), self._n):
            gradient[rate.alpha] += log_slope * by_factor[i]
        return _finite(total), np.array(gradient)

    def _constraints(self, values: list[float], gradient: list[float] | None = None) -> float:
        """The terms of the auxiliary data and all constants; adds their gradient to `gradient`."""
        total = self._constant
        for i, aux, weight in self._normal:
            pull = values[i] - aux
            total += 0.5 * weight * pull * pull
            if gradient is not None:
                gradient[i] += weight * pull
        for i, aux, tau in self._poisson:
            total += _poisson(aux, tau * values[i])
            if gradient is not None:
                gradient[i] += tau - aux / values[i]
        return total


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise FloatingPointError
    return value


def _poisson(count: float, expected: float) -> float:
    """ν - n - n ln(ν/n), see `likelihood`."""
    if count > 0:
        if expected > TINY_YIELD:
            return expected - (count + count * math.log(expected / count))
        return math.inf
    return expected


def _additive(alpha: float) -> tuple[float, float, float]:
    """g, f and the slope of f of code 4p."""
    if -1 < alpha < 1:
        s = alpha * alpha
        return alpha, s * (15 - s * (10 - 3 * s)), alpha * (30 - s * (40 - 18 * s))
    slope = 8.0 if alpha >= 0 else -8.0
    return alpha, slope * alpha, slope


def _rate_factor(rate: _Rate, alpha: float) -> tuple[float, float]:
    """A factor of code 4 and its logarithmic slope."""
    _, log_hi, log_lo, (a, b, c, d, e, f) = rate
    x = alpha
    if -1 < x < 1:
        value = 1 + x * (a + x * (b + x * (c + x * (d + x * (e + x * f)))))
        slope = a + x * (2 * b + x * (3 * c + x * (4 * d + x * (5 * e + x * 6 * f))))
        return value, slope / value
    if x > 0:
        return math.exp(x * log_hi), log_hi
    return math.exp(-x * log_lo), -log_lo


def _polynomial(deviations: Floats, logs: Floats) -> tuple[float, ...]:
    """Coefficients of code 4 inside |α| < 1, see `interpolation.code4`."""
    powers = np.array([[15, 24, -10, -24, 3, 8], [-7, -9, 10, 14, -3, -5], [1, 1, -2, -2, 1, 1]])
    rows = [
        np.array([deviation, (1 + deviation) * log, (1 + deviation) * log * log]) @ powers / 16
        for deviation, log in zip(deviations, logs, strict=True)
    ]
    odd = np.array([-1, 1, -1, 1, -1, 1])
    return tuple((rows[0] + odd * rows[1]).tolist())
