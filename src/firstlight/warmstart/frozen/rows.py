"""Rows of a call: which arguments and results have them, and how to change their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstlight.warmstart.frozen.errors import CannotFreezeError


def batched_leaves(args: Any, kwargs: Any, batched: Any) -> tuple[int, ...]:
    """The leaves of the arguments that have rows."""
    import jax

    marks = [jax.tree_util.tree_map(lambda _, i=i: i in batched, a) for i, a in enumerate(args)]
    named = {n: jax.tree_util.tree_map(lambda _, n=n: n in batched, v) for n, v in kwargs.items()}
    found = [i for i, mark in enumerate(jax.tree_util.tree_leaves((tuple(marks), named))) if mark]
    if not found:
        raise CannotFreezeError(f"buckets are given, but no argument is among batched={batched}.")
    return tuple(found)


def with_rows(args: object, kwargs: object, inputs: tuple[int, ...], rows: int) -> tuple[Any, Any]:
    """The arguments with so many rows, which repeat those of the example."""
    import jax
    import numpy as np

    leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
    for i in inputs:
        array = np.asarray(leaves[i])
        if not array.ndim or not len(array):
            raise CannotFreezeError("an argument named in `batched` has no rows in the example.")
        leaves[i] = np.resize(array, (rows, *array.shape[1:]))
    found: tuple[Any, Any] = tree.unflatten(leaves)
    return found


def batched_results(
    f: Callable[..., Any], args: object, kwargs: object, inputs: tuple[int, ...], rows: int
) -> tuple[int, ...]:
    """The results that have rows: their first axis grows with the rows of the arguments."""
    import jax

    def shapes(rows: int) -> list[tuple[int, ...]]:
        more = with_rows(args, kwargs, inputs, rows)
        return [
            leaf.shape for leaf in jax.tree_util.tree_leaves(jax.eval_shape(f, *more[0], **more[1]))
        ]

    pairs = enumerate(zip(shapes(rows), shapes(rows + 1), strict=True))
    changing = [(i, a, b) for i, (a, b) in pairs if a != b]
    if any(a != (rows, *a[1:]) or b != (rows + 1, *a[1:]) for _, a, b in changing):
        raise CannotFreezeError(
            "a result changes with the number of rows, but not in its first axis alone: it cannot "
            "be cut to the rows of a call. Move the rows to the front, or freeze without buckets."
        )
    return tuple(i for i, _, _ in changing)
