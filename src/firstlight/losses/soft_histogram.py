"""The soft histogram for JAX; `binning` defines it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from firstlight.forks import require_threads
from firstlight.histfactory.array_types import Array, ArrayLike, Number
from firstlight.histfactory.precision import in_float64, is_traced
from firstlight.losses.binning import (
    KINDS,
    OVERFLOW,
    LossError,
    checked_bandwidth,
    checked_choice,
    checked_edges,
    checked_scores,
    nan_scores,
    no_score_inside,
    open_ends,
)


def soft_histogram(
    scores: ArrayLike,
    edges: ArrayLike,
    weights: ArrayLike | None = None,
    bandwidth: Number | str = "auto",
    kind: str = "kde",
    overflow: str = "drop",
    *,
    axis_name: str | tuple[str, ...] | None = None,
) -> Array:
    """Yield per bin in float64, differentiable in scores, weights, edges and bandwidth.

    scores, weights: one number per event. edges: increasing; the outermost may be infinite.
    bandwidth: width of the kernel in units of the scores; "auto" is half the mean bin width.
    kind: "kde" (Gaussian kernel) or "sigmoid" (logistic kernel).
    overflow: "drop" (only events within the edges count, each with its full weight), "clip"
        (events outside count in the outermost bins), "leak" (the part of a kernel outside the
        edges is lost).
    axis_name: of the mesh axis over which events are divided, inside `jax.shard_map`: the histogram
        is then that of all events, the same on every device.
    """
    require_threads()
    checked_choice("kind", kind, KINDS)
    checked_choice("overflow", overflow, OVERFLOW)
    scores = _as_array(scores, "scores")
    weights = None if weights is None else _as_array(weights, "weights")
    checked_scores(scores, weights)
    known = _known(scores)
    if known is not None and (count := int(np.isnan(known).sum())):
        raise nan_scores(f"{count} of {known.size}")
    if not is_traced(edges):
        edges = checked_edges(edges)
        drops = known is not None and overflow == "drop"
        if drops and not np.any((known >= edges[0]) & (known <= edges[-1])):
            raise no_score_inside(edges[0], edges[-1])
    if not is_traced(bandwidth):
        if is_traced(edges) and isinstance(bandwidth, str):
            raise LossError("bandwidth: give a number if the edges are traced (jit, grad).")
        finite = np.zeros(0) if is_traced(edges) else np.asarray(edges, np.float64)
        bandwidth = checked_bandwidth(bandwidth, finite)
    ends = open_ends(edges, overflow)
    found = _histogram(scores, edges, weights, bandwidth, kind, overflow == "drop", *ends)
    return found if axis_name is None else jax.lax.psum(found, axis_name)


@in_float64
@partial(jax.jit, static_argnames=("kind", "drop", "low", "high"))  # else a program per operation
def _histogram(
    scores: ArrayLike,
    edges: ArrayLike,
    weights: ArrayLike | None,
    bandwidth: Number,
    kind: str,
    drop: bool,
    low: bool,
    high: bool,
) -> Array:
    """`low` and `high`: whether the first and the last bin extend to infinity."""
    x = jnp.asarray(scores, jnp.float64)
    edges = jnp.asarray(edges, jnp.float64)
    w = jnp.ones_like(x) if weights is None else jnp.asarray(weights, jnp.float64)
    broken = jnp.isnan(x)
    if drop:
        inside = (x >= edges[0]) & (x <= edges[-1])
        x = jnp.where(inside, x, jax.lax.stop_gradient(edges[len(edges) // 2]))
        w = jnp.where(inside, w, 0.0)
    w = jnp.where(broken, jnp.nan, w)  # in every bin, so that no loss takes it
    cumulative = jax.scipy.special.ndtr if kind == "kde" else jax.nn.sigmoid
    inner = edges[1 if low else 0 : -1 if high else None]
    below = cumulative((inner[:, None] - x) / bandwidth)
    nothing, everything = jnp.zeros((int(low), len(x))), jnp.ones((int(high), len(x)))
    below = jnp.concatenate([nothing, below, everything])
    share = jnp.diff(below, axis=0)
    # Far from an event, two integrals differ only by rounding, which may be negative.
    return jnp.where(share > 0, share, 0.0) @ w


def _known(values: Any) -> NDArray[np.float64] | None:
    """The values of an array, seen through `grad` and `vmap`; None in a compiled program."""
    while isinstance(values, jax.core.Tracer):
        mapped = hasattr(values, "batch_dim")
        values = getattr(values, "val" if mapped else "primal", None)
    return None if values is None else np.asarray(values, np.float64)


def _as_array(values: ArrayLike, name: str) -> Any:
    if hasattr(values, "dtype") and hasattr(values, "shape"):
        if not np.issubdtype(values.dtype, np.number) and str(values.dtype) != "bfloat16":
            raise LossError(f"{name} have type {values.dtype}; they must be numbers.")
        return values
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise LossError(f"{name} must be numbers, one per event.") from None
