"""Primitives that move elements: slices, gathers, scatters, padding, sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from firstlight.warmstart.tiers.numpy_rules import Array, Avals, Compute, NoRuleError, Params, Rule

Sizes: TypeAlias = Sequence[int]


def _slice(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    ranks = range(inputs[0].ndim)
    steps = params["strides"] or [1] * inputs[0].ndim
    where = tuple(
        slice(params["start_indices"][d], params["limit_indices"][d], steps[d]) for d in ranks
    )
    return lambda x: x[where]


def _squeeze(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    shape = outputs[0].shape
    return lambda x: np.reshape(x, shape)


def _with(parameter: str, function: Compute) -> Rule:
    """The rule of a function of one parameter and the arrays."""
    return lambda params, inputs, outputs: partial(function, params[parameter])


def _split(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    ends, axis = np.cumsum(params["sizes"])[:-1], params["axis"]
    return lambda x: np.split(x, ends, axis)


def _pad(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    shape, kind = outputs[0].shape, outputs[0].dtype
    into, taken = [], []
    for (low, _, between), size, full in zip(
        params["padding_config"], inputs[0].shape, shape, strict=True
    ):
        step = between + 1
        first = max(0, -(low // step))  # elements cut off at the beginning
        begin = low + first * step
        count = max(0, min(size - first, -((begin - full) // step)))
        taken.append(slice(first, first + count))
        into.append(slice(begin, begin + count * step, step))

    def pad(x: Array, value: Array) -> Array:
        result = np.full(shape, value, kind)
        result[tuple(into)] = x[tuple(taken)]
        return result

    return pad


def _dynamic_slice(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    sizes, shape = params["slice_sizes"], inputs[0].shape

    def cut(x: Array, *starts: Array) -> Array:
        return x[_window(starts, sizes, shape)]

    return cut


def _dynamic_update_slice(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    shape, sizes = inputs[0].shape, inputs[1].shape

    def update(x: Array, new: Array, *starts: Array) -> Array:
        result = np.array(x)
        result[_window(starts, sizes, shape)] = new
        return result

    return update


def _window(starts: Sequence[Array], sizes: Sizes, shape: Sizes) -> tuple[slice, ...]:
    """The window, moved into the array if it exceeds it, as XLA does."""
    begins = [
        min(max(int(start), 0), full - size)
        for start, size, full in zip(starts, sizes, shape, strict=True)
    ]
    return tuple(slice(b, b + size) for b, size in zip(begins, sizes, strict=True))


def _gather(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    may_miss = params["mode"].name == _FILL_OR_DROP
    shape, kind = inputs[0].shape, outputs[0].dtype
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    order = _axes_of_result(len(outputs[0].shape), numbers.offset_dims)
    fill = params["fill_value"]
    if fill is None:
        fill = _outside(kind)
    kept = [size for d, size in enumerate(sizes) if d not in dropped]

    def gather(x: Array, indices: Array) -> Array:
        starts, inside = _starts(
            indices, shape, sizes, numbers.start_index_map,
            numbers.operand_batching_dims, numbers.start_indices_batching_dims,
        )  # fmt: skip
        found = x[_elements(starts, sizes)]
        found = found.reshape((*indices.shape[:-1], *kept))
        if may_miss and not inside.all():
            mask = inside.reshape((*indices.shape[:-1], *[1] * len(kept)))
            found = np.where(mask, found, np.asarray(fill, kind))
        return found.transpose(order)

    return gather


#: The jax.lax.GatherScatterMode in which elements outside are neither read nor written.
_FILL_OR_DROP = "FILL_OR_DROP"


def _outside(kind: np.dtype[Any]) -> float:
    """The result of a gather for an index outside the array."""
    if kind.kind in "fcV":
        return np.nan
    if kind.kind == "b":
        return True
    return np.iinfo(kind).min if kind.kind == "i" else np.iinfo(kind).max


def _axes_of_result(rank: int, windows: Sizes) -> list[int]:
    """The permutation from (axes of the indices, axes of a window) to the result's axes."""
    batch = [d for d in range(rank) if d not in windows]
    source = {d: i for i, d in enumerate([*batch, *windows])}
    return [source[d] for d in range(rank)]


def _starts(
    indices: Array,
    shape: Sizes,
    sizes: Sizes,
    index_map: Sizes,
    batching: Sizes,
    indices_batching: Sizes,
) -> tuple[list[Array], Array]:
    """Begins of all windows per dimension, moved inside; and which windows were inside."""
    batch_shape = indices.shape[:-1]
    starts: list[Array] = [np.zeros(batch_shape, np.int64) for _ in shape]
    for column, dimension in enumerate(index_map):
        starts[dimension] = indices[..., column].astype(np.int64)
    for dimension, axis in zip(batching, indices_batching, strict=True):
        line = np.arange(batch_shape[axis]).reshape(
            [-1 if d == axis else 1 for d in range(len(batch_shape))]
        )
        starts[dimension] = np.broadcast_to(line, batch_shape)
    inside = np.ones(batch_shape, bool)
    for dimension, start in enumerate(starts):
        last = shape[dimension] - sizes[dimension]
        inside &= (start >= 0) & (start <= last)
        starts[dimension] = np.clip(start, 0, last)
    return starts, inside


def _elements(starts: list[Array], sizes: Sizes) -> tuple[Array, ...]:
    """Indices of all elements of all windows: (axes of the indices, axes of a window)."""
    rank = len(sizes)
    return tuple(
        start.reshape((*start.shape, *[1] * rank))
        + np.arange(size).reshape([-1 if d == dimension else 1 for d in range(rank)])
        for dimension, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )


def _scatter(combine: Callable[[Array, tuple[Array, ...], Array], None]) -> Rule:
    def rule(params: Params, inputs: Avals, outputs: Avals) -> Compute:
        numbers = params["dimension_numbers"]
        shape, updates = inputs[0].shape, inputs[2].shape
        if not shape:
            raise NoRuleError
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        windows = iter(numbers.update_window_dims)
        sizes = [1 if d in dropped else updates[next(windows)] for d in range(len(shape))]
        axes = [d for d in range(len(updates)) if d not in numbers.update_window_dims]
        axes += numbers.update_window_dims
        must_fit = params["mode"].name == _FILL_OR_DROP

        def scatter(x: Array, indices: Array, new: Array) -> Array:
            starts, inside = _starts(
                indices, shape, sizes, numbers.scatter_dims_to_operand_dims,
                numbers.operand_batching_dims, numbers.scatter_indices_batching_dims,
            )  # fmt: skip
            new = np.transpose(new, axes).reshape((*indices.shape[:-1], *sizes))
            where: Sequence[Array] = np.broadcast_arrays(*_elements(starts, sizes))
            if must_fit and not inside.all():
                where, new = [part[inside] for part in where], new[inside]
            result = np.array(x)
            combine(result, tuple(where), new)
            return result

        return scatter

    return rule


def _set(array: Array, where: tuple[Array, ...], new: Array) -> None:
    array[where] = new


def _sort(params: Params, inputs: Avals, outputs: Avals) -> Compute:
    axis, keys = params["dimension"], params["num_keys"]

    def sort(*operands: Array) -> list[Array]:
        if len(operands) == 1:
            return [np.sort(operands[0], axis, kind="stable")]
        order = np.lexsort([np.moveaxis(o, axis, -1) for o in reversed(operands[:keys])], axis=-1)
        order = np.moveaxis(order, -1, axis)
        return [np.take_along_axis(operand, order, axis) for operand in operands]

    return sort


RULES: dict[str, Rule] = {
    "slice": _slice,
    "squeeze": _squeeze,
    "expand_dims": _squeeze,
    "transpose": _with("permutation", lambda order, x: np.transpose(x, order)),
    "rev": _with("dimensions", lambda axes, x: np.flip(x, axes)),
    "concatenate": _with("dimension", lambda axis, *parts: np.concatenate(parts, axis)),
    "stack": _with("axis", lambda axis, *parts: np.stack(parts, axis)),
    "unstack": _with("axis", lambda axis, x: list(np.moveaxis(x, axis, 0))),
    "split": _split,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter(_set),
    "scatter-add": _scatter(np.add.at),
    "scatter_add": _scatter(np.add.at),
    "scatter_mul": _scatter(np.multiply.at),
    "scatter_min": _scatter(np.minimum.at),
    "scatter_max": _scatter(np.maximum.at),
    "sort": _sort,
}
