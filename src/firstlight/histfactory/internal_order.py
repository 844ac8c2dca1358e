"""Conversion between the public order of parameters and data and a model's internal order.

Public parameter vectors and data are in pyhf's order. Internally, parameters are in three blocks
(α, φ, γ; see `layout`), bins of all channels are side by side, and both are padded.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from firstlight.histfactory.lazy_jax import jax, jnp
from firstlight.histfactory.likelihood import Data, Prepared, prepare
from firstlight.histfactory.model import Arrays, Floats, Model, ModelError, as_numbers
from firstlight.histfactory.precision import is_traced


def to_public(model: Model, internal: Any) -> Any:
    """A parameter vector in public order; NumPy unless it is traced."""
    order = model._order
    return internal[..., order] if is_traced(internal) else np.asarray(internal)[..., order]


def to_internal(model: Model, vector: Any, neutral: Any = None) -> Any:
    """Internal order of a vector (the last axis); padding takes the `neutral` values."""
    neutral = model._settings.init if neutral is None else neutral
    if is_traced(vector, neutral):
        vector = jnp.asarray(vector, jnp.float64)
        shape = (*vector.shape[:-1], model.about.sizes.parameters)
        return jnp.broadcast_to(neutral, shape).at[..., model._order].set(vector)
    vector = np.asarray(vector, np.float64)
    filled = np.empty((*vector.shape[:-1], model.about.sizes.parameters))
    filled[...] = neutral
    filled[..., model._order] = vector
    return filled


def poi_position(model: Model) -> int:
    """Internal position of the parameter of interest."""
    return int(model._order[model.poi_index])


def data_of(model: Model, values: Any = None, *, batch: bool = False) -> Data:
    """Data in internal form, from None (observed), main, main + auxiliary, or `Data`.

    batch: whether leading axes are allowed.
    """
    if isinstance(values, Data):
        return values
    if values is None:
        return model._observed_data
    n_main, n_aux = model.n_bins, len(model._constrained)
    values = as_numbers(values, "data")
    shape = np.shape(values)
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
    xp: Any = jnp if is_traced(values) else np
    values = xp.asarray(values, np.float64)
    if xp is np:
        _require_possible(model, values, n_main)
    axes = shape[:-1]
    padding = xp.zeros((*axes, model.about.sizes.bins - n_main))
    main = xp.concatenate([values[..., :n_main], padding], axis=-1)
    if shape[-1] == n_main:
        return Data(
            main, xp.broadcast_to(model._settings.auxdata, (*axes, model.about.sizes.parameters))
        )
    where = model._order[model._constrained]
    if xp is jnp or is_traced(model._settings.auxdata):
        aux = jnp.broadcast_to(model._settings.auxdata, (*axes, model.about.sizes.parameters))
        aux = aux.at[..., where].set(values[..., n_main:])
    else:
        aux = np.empty((*axes, model.about.sizes.parameters))
        aux[...] = model._settings.auxdata
        aux[..., where] = values[..., n_main:]
    return Data(main, aux)


def _require_possible(model: Model, values: Floats, n_main: int) -> None:
    main, aux = values[..., :n_main], values[..., n_main:]
    if not np.all(np.isfinite(values)):
        raise ModelError(f"{model.about.source}: data must be finite numbers.")
    counts = model.about.structure.poisson[model._order[model._constrained]] > 0
    if np.any(main < 0) or (aux.size and np.any(aux[..., counts] < 0)):
        raise ModelError(f"{model.about.source}: counts cannot be negative.")


def data_vector(model: Model, data: Data) -> Any:
    """Main and auxiliary data as one vector in pyhf's order."""
    where = model._order[model._constrained]
    xp: Any = jnp if is_traced(data) else np
    main, aux = xp.asarray(data.main), xp.asarray(data.aux)
    return xp.concatenate([main[..., : model.n_bins], aux[..., where]], axis=-1)


def prepared(model: Model) -> Prepared:
    """The arrays that evaluation needs; computed once for a model that is not traced."""
    if not model._is_traced:
        return model._prepared
    arrays = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), model.arrays)
    return prepare(arrays, model.about.structure, model.about.codes)


def with_arrays(model: Model, **arrays: Any) -> Model:
    """The same model with other arrays (fields of `Arrays`, in the padded grid)."""
    for name, array in arrays.items():
        known = getattr(model.arrays, name, None)
        if known is None:
            names = ", ".join(f.name for f in fields(Arrays))
            raise ModelError(f"a model has no array {name!r}. It has {names}.")
        if np.shape(array) != known.shape:
            raise ModelError(f"{name} has shape {np.shape(array)}; the model's has {known.shape}.")
    if not is_traced(arrays):
        arrays = {k: np.array(v, np.float64) for k, v in arrays.items()}
    return Model(replace(model.arrays, **arrays), model.about)
