"""Conversion of parameters and data between public and internal order.

Public parameter vectors and data are in pyhf's order. Internally, parameters are in three blocks
(α, φ, γ; see `layout`), bins of all channels are side by side, and both are padded.
"""

from __future__ import annotations

import numpy as np

from firstlight.histfactory.argument_checks import ModelError, as_numbers
from firstlight.histfactory.array_types import Array, DataSet, Numpy
from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.likelihood import Data, Prepared, prepare
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.numpy_or_jax import plain, put
from firstlight.histfactory.precision import is_traced


def to_public(model: Model, internal: Array) -> Array:
    """A parameter vector in public order; NumPy unless it is traced."""
    ordered: Array = plain(internal)[..., model._order]
    return ordered


def to_internal(model: Model, vector: Array, neutral: Array | None = None) -> Array:
    """A vector (the last axis) in internal order; padding takes the `neutral` values."""
    neutral = model._settings.init if neutral is None else neutral
    return put(_spread(model, neutral, np.shape(vector)[:-1]), (..., model._order), vector)


def _spread(model: Model, vector: Array, axes: tuple[int, ...]) -> Array:
    """An internal parameter vector, repeated over leading axes."""
    xp: Numpy = jnp if is_traced(vector) else np
    return xp.broadcast_to(vector, (*axes, model.about.sizes.parameters))


def poi_position(model: Model) -> int:
    """Internal position of the parameter of interest."""
    return int(model._order[model.poi_index])


def data_of(model: Model, values: DataSet | Data = None, *, batch: bool = False) -> Data:
    """Data in internal form.

    values: None (the observed data), main counts, main and auxiliary data, or `Data`, returned
    unchanged. batch: whether leading axes are allowed.
    """
    if isinstance(values, Data):
        return values
    if values is None:
        return model._observed_data
    n_main, n_aux = model.n_bins, len(model._constrained)
    numbers = as_numbers(values, "data")
    shape = np.shape(numbers)
    if len(shape) > 1 and not batch:
        raise ModelError(
            f"{model.about.source}: data have shape {shape}, which is several data sets. "
            "Fit many with toys(model, data=...), or use jax.vmap."
        )
    if not shape or shape[-1] not in (n_main, n_main + n_aux):
        raise ModelError(
            f"{model.about.source}: data have shape {shape}; expected {n_main} main counts, or "
            f"{n_main + n_aux} with auxiliary data (channels {', '.join(model.channel_names)})."
        )
    xp: Numpy = jnp if is_traced(numbers) else np
    numbers = xp.asarray(numbers, np.float64)
    if isinstance(numbers, np.ndarray):
        _require_possible(model, numbers, n_main)
    axes = shape[:-1]
    padding = xp.zeros((*axes, model.about.sizes.bins - n_main))
    main = xp.concatenate([numbers[..., :n_main], padding], axis=-1)
    aux = _spread(model, model._settings.auxdata, axes)
    if shape[-1] > n_main:
        aux = put(aux, (..., model._order[model._constrained]), numbers[..., n_main:])
    return Data(main, aux)


def _require_possible(model: Model, values: Floats, n_main: int) -> None:
    main, aux = values[..., :n_main], values[..., n_main:]
    if not np.all(np.isfinite(values)):
        raise ModelError(f"{model.about.source}: data must be finite numbers.")
    counts = model.about.structure.poisson[model._order[model._constrained]] > 0
    if np.any(main < 0) or (aux.size and np.any(aux[..., counts] < 0)):
        raise ModelError(f"{model.about.source}: counts cannot be negative.")


def data_vector(model: Model, data: Data) -> Array:
    """Main and auxiliary data as one vector in pyhf's order."""
    where = model._order[model._constrained]
    xp: Numpy = jnp if is_traced(data) else np
    main, aux = xp.asarray(data.main), xp.asarray(data.aux)
    return xp.concatenate([main[..., : model.n_bins], aux[..., where]], axis=-1)


def prepared(model: Model) -> Prepared:
    """The model as `Prepared`, cached unless it is traced."""
    if not model._is_traced:
        return model._prepared
    arrays = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), model.arrays)
    return prepare(arrays, model.about.structure, model.about.codes)
