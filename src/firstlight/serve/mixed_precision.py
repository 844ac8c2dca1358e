"""Models computed in a lower precision, whose loss of accuracy is measured before serving."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.compiled_models import Arrays, Loaded, LoadError, load
from firstlight.serve.declaration import Model

_SEED = 0


def load_as_declared(model: Model, watch: CompileWatch, max_bytes: int | None = None) -> Loaded:
    """`load`, in the model's `compute_dtype` if it has one.

    Raises:
        LoadError: As `load`; also if results differ by more than `max_relative_error` from those
            in full precision.
    """
    if model.compute_dtype is None:
        return load(model, watch, max_bytes)
    lower = load(_in_lower_precision(model), watch, max_bytes)
    error = _accuracy_loss(model, lower, watch)
    if not error <= model.max_relative_error:
        raise LoadError(
            f"model {model.name!r}: in {model.compute_dtype} its results differ by {error:.2g} of "
            f"the largest value from full precision; {model.max_relative_error:g} is allowed. "
            "Serve it without compute_dtype, or raise max_relative_error."
        )
    return replace(lower, relative_error=error)


def _in_lower_precision(model: Model) -> Model:
    dtype = jnp.dtype(model.compute_dtype)

    def function(*arguments: Any, **inputs: Any) -> Any:
        full = jax.eval_shape(model.function, *model.leading, **inputs)
        result = model.function(*arguments, **_cast(inputs, dtype))
        return jax.tree.map(lambda leaf, as_before: leaf.astype(as_before.dtype), result, full)

    if not model.leading:
        return replace(model, function=function)
    return replace(model, function=function, parameters=_cast(model.parameters, dtype))


def _cast(tree: object, dtype: Any) -> Any:
    """A tree with its floating-point numbers in another precision."""

    def cast(leaf: Any) -> object:
        array = leaf if hasattr(leaf, "astype") else np.asarray(leaf)
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, tree)


def _accuracy_loss(model: Model, lower: Loaded, watch: CompileWatch) -> float:
    """The largest difference of any output, relative to the output's largest value."""
    sizes, buckets = next(iter(lower.lanes.items()))
    rows = _examples(model, lower, buckets[-1].rows, sizes)
    with watch.preparing():
        full = load(replace(model, buckets=(buckets[-1].rows,), compute_dtype=None), watch)
    wanted = full.run(full.lanes[sizes][0], rows)
    found = lower.run(buckets[-1], rows)
    return max(
        (_difference(a, b) for a, b in zip(found, wanted, strict=True) if b.dtype.kind in "fV"),
        default=0.0,
    )


def _difference(found: Any, wanted: Any) -> float:
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.max(np.abs(a - b)) / max(float(np.max(np.abs(b))), np.finfo(np.float64).tiny))


def _examples(model: Model, lower: Loaded, rows: int, sizes: tuple[int, ...]) -> Arrays:
    """The model's examples, repeated to fill a bucket; otherwise normal random numbers."""
    draw = np.random.default_rng(_SEED)
    named = dict(zip(lower.signature.axes, sizes, strict=True))
    arrays = []
    for tensor in lower.signature.inputs:
        shape = (rows, *tensor.sized(named))
        given = (model.examples or {}).get(tensor.name)
        if given is not None:
            arrays.append(np.resize(np.asarray(given, tensor.dtype), shape))
        elif tensor.default is not None:
            arrays.append(np.repeat(tensor.default[None], rows, axis=0))
        elif tensor.dtype.kind in "fV":
            arrays.append(draw.normal(size=shape).astype(tensor.dtype))
        else:
            arrays.append(np.ones(shape, tensor.dtype))
    return arrays
