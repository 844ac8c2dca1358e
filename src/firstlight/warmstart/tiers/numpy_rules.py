"""JAX's primitives in NumPy.

A rule takes an equation's parameters and the shapes and types of its arrays, and returns a function
that computes the results from NumPy arrays. JAX runs primitives without a rule, one at a time. The
operands of a primitive have the same type, so NumPy's promotion rules do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jax.core import ShapedArray

Array: TypeAlias = NDArray[Any]
Compute: TypeAlias = Callable[..., Any]  # of arrays, to an array or several
Params: TypeAlias = Mapping[str, Any]  # of an equation
Avals: TypeAlias = "Sequence[ShapedArray]"
#: (parameters, abstract inputs, abstract outputs)
Rule: TypeAlias = Callable[[Params, Avals, Avals], Compute]
#: math.erf is called per element: for more elements, JAX's own operation is faster.
_MAX_ELEMENTS = 4096


class NoRuleError(Exception):
    """The rule does not cover this equation."""


def _division(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    if inputs[0].dtype.kind not in "iub":
        return np.divide

    def towards_zero(a: Array, b: Array) -> Array:
        quotient = np.floor_divide(np.abs(a), np.abs(b))
        return np.where((a < 0) != (b < 0), -quotient, quotient).astype(a.dtype)

    return towards_zero


def _integer_pow(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    power = params["y"]
    if power == 2:
        return np.square
    if power == -1:
        return np.reciprocal
    if power < 0:
        return lambda x: np.reciprocal(_power(x, -power))
    return lambda x: _power(x, power)


def _power(x: Array, power: int) -> Array:
    """By repeated squaring, since np.power uses a logarithm."""
    result = None
    while power:
        if power & 1:
            result = x if result is None else result * x
        power >>= 1
        if power:
            x = x * x
    return np.ones_like(x) if result is None else result


def _convert(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    kind = outputs[0].dtype
    if inputs[0].dtype.kind not in "fV" or kind.kind not in "iu":
        return lambda x: np.asarray(x).astype(kind)
    # XLA saturates, and converts NaN to 0; NumPy leaves both undefined.
    low, high = np.iinfo(kind).min, np.iinfo(kind).max

    def nearest(x: Array) -> Array:
        wide = np.nan_to_num(np.asarray(x, np.float64))
        inner = np.where((wide > low) & (wide < high), wide, 0).astype(kind)
        # Compared as floats, where the largest 64-bit integer is rounded up by one.
        edges = np.where(wide >= high, np.asarray(high, kind), np.asarray(low, kind))
        return np.where((wide > low) & (wide < high), inner, edges)

    return nearest


def _select(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    if inputs[0].dtype.kind == "b":
        return lambda which, no, yes: np.where(which, yes, no)
    return lambda which, *cases: np.choose(which, cases)


def _reduction(ufunc: np.ufunc) -> Rule:
    def rule(params: Params, inputs: Avals, outputs: Avals) -> Compute:
        axes, kind = tuple(params["axes"]), outputs[0].dtype
        return lambda x: ufunc.reduce(x, axis=axes, dtype=kind)

    return rule


def _arg_reduction(function: Callable[..., Array]) -> Rule:
    def rule(params: Params, inputs: Avals, outputs: Avals) -> Compute:
        (axis,), kind = params["axes"], outputs[0].dtype
        return lambda x: function(x, axis=axis).astype(kind)

    return rule


def _cumulative(ufunc: np.ufunc) -> Rule:
    def rule(params: Params, inputs: Avals, outputs: Avals) -> Compute:
        axis, kind = params["axis"], outputs[0].dtype
        if params["reverse"]:
            return lambda x: np.flip(ufunc.accumulate(np.flip(x, axis), axis, dtype=kind), axis)
        return lambda x: ufunc.accumulate(x, axis, dtype=kind)

    return rule


def _broadcast(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    shape, dimensions = outputs[0].shape, params["broadcast_dimensions"]
    if len(inputs) != 1:
        raise NoRuleError
    middle = [1] * len(shape)
    for axis, size in zip(dimensions, inputs[0].shape, strict=True):
        middle[axis] = size
    return lambda x: np.broadcast_to(np.reshape(x, middle), shape)


def _iota(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    shape, axis = outputs[0].shape, params["dimension"]
    line = np.arange(shape[axis]).astype(outputs[0].dtype)
    whole = np.broadcast_to(
        line.reshape([-1 if d == axis else 1 for d in range(len(shape))]), shape
    )
    return lambda: whole


def _reshape(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    if params.get("dimensions") is not None or len(inputs) != 1:
        raise NoRuleError
    shape = outputs[0].shape
    return lambda x: np.reshape(x, shape)


def _element_by_element(function: Callable[[float], float]) -> Rule:
    def rule(params: Params, inputs: Avals, outputs: Avals) -> Compute:
        if inputs[0].size > _MAX_ELEMENTS:
            raise NoRuleError
        kind, vectorised = outputs[0].dtype, np.frompyfunc(function, 1, 1)
        return lambda x: np.asarray(vectorised(np.asarray(x, np.float64))).astype(kind)

    return rule


def _shift(ufunc: np.ufunc, signed: bool = False) -> Rule:
    def rule(params: Params, inputs: Avals, outputs: Avals) -> Compute:
        kind, bits = inputs[0].dtype, inputs[0].dtype.itemsize * 8
        as_read = np.dtype(f"{'i' if signed else 'u'}{kind.itemsize}")

        def shift(x: Array, by: Array) -> Array:
            x, by = np.asarray(x).view(as_read), np.asarray(by).astype(as_read)
            if signed:
                shifted: Array = ufunc(x, np.minimum(by, bits - 1))
                return shifted.view(kind)
            # A shift by all bits or more gives zero; processors disagree on that.
            return np.where(by < bits, ufunc(x, by % bits), 0).astype(as_read).view(kind)

        return shift

    return rule


def _rounded(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    if int(params["rounding_method"]) == 1:  # to even
        return np.rint
    return lambda x: np.trunc(x + np.copysign(np.asarray(0.5, x.dtype), x))


def _always(compute: Compute) -> Rule:
    return lambda params, inputs, outputs: compute


def _same(*values: Array) -> Array | tuple[Array, ...]:
    return values[0] if len(values) == 1 else values


def _logical(of_bools: np.ufunc, of_numbers: np.ufunc) -> Rule:
    def rule(params: Params, inputs: Avals, outputs: Avals) -> Compute:
        chosen: Compute = of_bools if inputs[0].dtype.kind == "b" else of_numbers
        return chosen

    return rule


def _logistic(x: Array) -> Array:
    one = np.asarray(1, np.asarray(x).dtype)
    found: Array = one / (one + np.exp(-x))
    return found


_UNCHANGED = ("stop_gradient", "copy", "copy_p", "optimization_barrier")
_SAME_NAME = (
    *("abs", "sign", "square", "sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "conj"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "nextafter"),
)
_NUMPY_NAMES = {
    **{"sub": "subtract", "neg": "negative", "max": "maximum", "min": "minimum", "rem": "fmod"},
    **{"pow": "power", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2"},
    **{"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "is_finite": "isfinite"},
    **{"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"},
    **{"ge": "greater_equal", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"},
}
RULES: dict[str, Rule] = {
    "add": _logical(np.logical_or, np.add),
    "add_any": _always(np.add),
    "mul": _logical(np.logical_and, np.multiply),
    "div": _division,
    "integer_pow": _integer_pow,
    "convert_element_type": _convert,
    "select_n": _select,
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": _reshape,
    "round": _rounded,
    "clamp": _always(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "rsqrt": _always(lambda x: np.reciprocal(np.sqrt(x))),
    "logistic": _always(_logistic),
    "not": _logical(np.logical_not, np.bitwise_not),
    "erf": _element_by_element(math.erf),
    "erfc": _element_by_element(math.erfc),
    "reduce_sum": _reduction(np.add),
    "reduce_prod": _reduction(np.multiply),
    "reduce_max": _reduction(np.maximum),
    "reduce_min": _reduction(np.minimum),
    "reduce_and": _reduction(np.bitwise_and),
    "reduce_or": _reduction(np.bitwise_or),
    "argmax": _arg_reduction(np.argmax),
    "argmin": _arg_reduction(np.argmin),
    "cumsum": _cumulative(np.add),
    "cumprod": _cumulative(np.multiply),
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "shift_left": _shift(np.left_shift),
    "shift_right_logical": _shift(np.right_shift),
    "shift_right_arithmetic": _shift(np.right_shift, signed=True),
    **{name: _always(_same) for name in _UNCHANGED},
    **{name: _always(getattr(np, name)) for name in _SAME_NAME},
    **{name: _always(getattr(np, numpy_name)) for name, numpy_name in _NUMPY_NAMES.items()},
}
