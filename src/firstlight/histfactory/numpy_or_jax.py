"""Loops, trees and array updates that work in NumPy and in JAX, so one search serves both.

`xp` is the module to compute with, `numpy` or `jax.numpy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from firstlight.histfactory.array_types import Array, ArrayLike, Index, Number, Numpy, Truth
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.precision import is_traced

T = TypeVar("T")


def put(array: Array, index: Index, values: ArrayLike | Number) -> Array:
    """A copy of an array in 64 bits, with other values at `index`."""
    if is_traced(array, values):
        return jnp.asarray(array, jnp.float64).at[index].set(values)
    copy = np.array(array, np.float64)
    copy[index] = values
    return copy


def plain(value: Any) -> Any:
    """A traced value unchanged; any other value as a Python number or a NumPy array."""
    if is_traced(value):
        return value
    value = np.asarray(value)
    return value if value.ndim else value.item()


def map_leaves(function: Callable[..., object], first: Any, *others: Any) -> Any:
    """Like `jax.tree.map`, for named tuples of arrays, without importing JAX."""
    if first is None:
        return None
    if not isinstance(first, tuple):
        return function(first, *others)
    parts = zip(first, *others, strict=True)
    values = [map_leaves(function, *part) for part in parts]
    return type(first)(*values) if hasattr(first, "_fields") else tuple(values)


def row_of(stacked: T, i: int) -> T:
    """One row of stacked problems or minima."""
    row: T = map_leaves(lambda a: a[i], stacked)
    return row


def while_loop(proceed: Callable[[T], Truth], step: Callable[[T], T], state: T, xp: Numpy) -> T:
    """A loop in Python for NumPy, part of the program for JAX."""
    if xp is not np:
        end: T = jax.lax.while_loop(proceed, step, state)
        return end
    while proceed(state):
        state = step(state)
    return state


def nothing_like(xp: Numpy, function: Callable[..., object], *arguments: object) -> Any:
    """Zeros in the shapes that `function` returns: the initial state of a loop in a program."""
    if xp is np:
        return None
    shapes = jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
