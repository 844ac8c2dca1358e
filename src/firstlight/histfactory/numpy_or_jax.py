"""Loops, trees and array updates that work in NumPy and in JAX, so one search serves both.

`xp` is the module to compute with, `numpy` or `jax.numpy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

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
        leaves, structure = jax.tree.flatten(state)
        packing = _Packing(structure, tuple(_form(leaf) for leaf in leaves))
        end: _Packed = jax.lax.while_loop(
            lambda packed: proceed(packing.unpack(packed)),
            lambda packed: packing.pack(step(packing.unpack(packed))),
            packing.pack(state),
        )
        return cast(T, packing.unpack(end))
    while proceed(state):
        state = step(state)
    return state


_Packed: TypeAlias = tuple[Array, list[Array]]


def _form(leaf: Array) -> tuple[int, Any]:
    """Number of axes and type of a leaf of a loop's state."""
    return np.ndim(leaf), jnp.asarray(leaf).dtype


class _Packing(NamedTuple):
    """Carries the scalars of a loop's state as one vector.

    Otherwise XLA computes and copies every one of them by a kernel of its own, which has to be
    compiled, and on a GPU to be launched in every iteration. Float64 holds all their values.
    """

    structure: Any
    forms: tuple[tuple[int, Any], ...]

    def pack(self, state: object) -> _Packed:
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(state)]
        scalars = [leaf.astype(float) for leaf in leaves if not leaf.ndim]
        vector, places = jnp.zeros(len(scalars)), np.arange(len(scalars))
        for i, scalar in enumerate(scalars):  # `stack` would not fuse with what computes them
            vector = jnp.where(places == i, scalar, vector)
        return vector, [leaf for leaf in leaves if leaf.ndim]

    def unpack(self, packed: _Packed) -> Any:
        vector, arrays = packed
        scalars, others = iter(vector), iter(arrays)
        leaves = [
            next(others) if axes else self._scalar(next(scalars), dtype)
            for axes, dtype in self.forms
        ]
        return jax.tree.unflatten(self.structure, leaves)

    @staticmethod
    def _scalar(value: Array, dtype: Any) -> Array:
        return value > 0 if np.issubdtype(dtype, np.bool_) else value.astype(dtype)


def nothing_like(xp: Numpy, function: Callable[..., object], *arguments: object) -> Any:
    """Zeros in the shapes that `function` returns: the initial state of a loop in a program."""
    if xp is np:
        return None
    shapes = jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
