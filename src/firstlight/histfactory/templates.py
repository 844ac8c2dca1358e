"""Replaces templates of a model, for example with yields that a network produces.

A template is named by

    "ttH"                              yields of a sample in all its channels, concatenated
    ("SR", "ttH")                      yields of a sample in one channel
    ("SR", "ttH", "jes", "hi")         a variation, "hi" or "lo": the yields of a histosys, the
                                       factor of a normsys

Everything is differentiable with respect to the values. If yields are replaced without their
variations, `variations` selects what happens to the `histosys` of the sample:

    "absolute"   they are unchanged, as if only `data` in the workspace were edited
    "relative"   they remain the same fraction of the yields

The relative widths of `staterror` and `shapesys` are unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.array_types import Array, ArrayLike, Index, Numpy
from firstlight.histfactory.lazy_jax import jnp
from firstlight.histfactory.numpy_or_jax import put
from firstlight.histfactory.precision import float64_scope, is_traced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from firstlight.histfactory.model import Model

Key = str | tuple[str, ...]
VARIATIONS = ("absolute", "relative")
SIDES = ("lo", "hi")


class Position(NamedTuple):
    """The position of a template: the name of an array, and the index of every value."""

    array: str
    where: tuple[NDArray[np.int64], ...]

    @property
    def size(self) -> int:
        return int(self.where[-1].size)

    @property
    def axes(self) -> int:
        """Number of axes: one for yields, none for a factor."""
        return int(self.where[-1].ndim)


def place_of(model: Model, key: Key) -> Position:
    """The position of a template; raises a `ModelError` that lists the known names."""
    if isinstance(key, str):
        return _nominal(model, [(c, key) for c in _channels_with(model, key)])
    if isinstance(key, tuple) and len(key) == 2:
        return _nominal(model, [key])
    if isinstance(key, tuple) and len(key) == 4:
        return _variation(model, *key)
    raise ModelError(
        f"{model.about.source}: {key!r} is not a template. Give a sample, (channel, sample), or "
        "(channel, sample, modifier, 'hi' or 'lo')."
    )


def exchange(
    model: Model, templates: Mapping[Key, ArrayLike], variations: str = "absolute"
) -> Model:
    """The model with other templates. Values are not checked: they may be traced."""
    if variations not in VARIATIONS:
        raise ModelError(f"variations is {variations!r}, not one of {', '.join(VARIATIONS)}.")
    places = {key: place_of(model, key) for key in templates}
    for key, place in places.items():
        require_size(model, key, place, np.shape(templates[key]))
    _require_apart(model, places)
    traced = is_traced(model, tuple(templates.values()))
    with float64_scope() if traced else contextlib.nullcontext():
        arrays = {name: getattr(model.arrays, name) for name in _ARRAYS}
        new = dict(arrays)
        # Yields first: variations may scale along with them, unless they are given, too.
        for key in sorted(places, key=lambda k: places[k].array != "nominal"):
            place, values = places[key], templates[key]
            new[place.array] = put(new[place.array], place.where, values)
            if place.array == "nominal" and variations == "relative":
                for name in ("histosys_lo", "histosys_hi"):
                    new[name] = _follow(new[name], arrays["nominal"], place.where, values)
    return with_arrays(model, **{k: v for k, v in new.items() if v is not arrays[k]})


def with_arrays(model: Model, **arrays: Array) -> Model:
    """The same model with other arrays (fields of `Arrays`, in the padded grid)."""
    for name, array in arrays.items():
        known = getattr(model.arrays, name, None)
        if known is None:
            names = ", ".join(f.name for f in fields(model.arrays))
            raise ModelError(f"a model has no array {name!r}. It has {names}.")
        if np.shape(array) != known.shape:
            raise ModelError(f"{name} has shape {np.shape(array)}; the model's has {known.shape}.")
    if not is_traced(arrays):
        arrays = {k: np.array(v, np.float64) for k, v in arrays.items()}
    return type(model)(replace(model.arrays, **arrays), model.about)


def by_template(
    model: Model, slopes: Mapping[str, Array], templates: Mapping[Key, ArrayLike], variations: str
) -> list[NDArray[np.float64]]:
    """Derivatives with respect to templates, in their order: the transpose of `exchange` in NumPy.

    slopes: derivatives with respect to the arrays of the changed model, by name.
    """
    slopes = {name: np.array(slopes[name]) for name in _ARRAYS}
    places = {key: place_of(model, key) for key in templates}
    found: dict[Key, NDArray[np.float64]] = {}
    # Yields last: given variations do not scale along with them.
    for key in sorted(places, key=lambda k: places[k].array == "nominal"):
        array, where = places[key]
        found[key] = slopes[array][where]
        slopes[array][where] = 0.0
        if array == "nominal" and variations == "relative":
            before = np.asarray(model.arrays.nominal)[where]
            scale = np.where(before > 0, 1 / np.where(before > 0, before, 1.0), 0.0)
            here: Index = (slice(None), *where)
            for name in ("histosys_lo", "histosys_hi"):
                varied = np.asarray(getattr(model.arrays, name))[here]
                found[key] = found[key] + scale * (slopes[name][here] * varied).sum(0)
    return [found[key] for key in templates]


_ARRAYS = ("nominal", "histosys_lo", "histosys_hi", "normsys_lo", "normsys_hi")


def require_size(model: Model, key: Key, place: Position, shape: tuple[int, ...]) -> None:
    """Check for one value per bin, or one number for a factor."""
    wanted = (place.size,) * place.axes
    if shape != wanted:
        raise ModelError(
            f"{model.about.source}: the template {name_of(key)} has shape {shape}; the model has "
            f"{place.size} {'bins' if wanted else 'number'} there, so give shape {wanted}."
        )


def _require_apart(model: Model, places: Mapping[Key, Position]) -> None:
    taken: dict[tuple[object, ...], Key] = {}
    for key, place in places.items():
        for cell in zip(*(np.ravel(w) for w in place.where), strict=True):
            other = taken.setdefault((place.array, *map(int, cell)), key)
            if other is not key:
                raise ModelError(
                    f"{model.about.source}: the templates {name_of(other)} and {name_of(key)} "
                    "cover the same bins. Give each bin once."
                )


def name_of(key: Key) -> str:
    """The name of a template in messages."""
    if isinstance(key, str):
        return f"of sample {key!r}"
    words = ("channel", "sample", "modifier", "side")
    return "of " + ", ".join(f"{w} {k!r}" for w, k in zip(words, key, strict=False))


def _follow(
    templates: Array, nominal: Array, index: tuple[NDArray[np.int64], ...], values: ArrayLike
) -> Array:
    """Variations of all parameters [α, slot, bin], scaled in proportion to the yields."""
    xp: Numpy = jnp if is_traced(templates, nominal, values) else np
    before = xp.asarray(nominal)[index]
    ratio = xp.where(before > 0, xp.asarray(values) / xp.where(before > 0, before, 1.0), 1.0)
    here: Index = (slice(None), *index)
    return put(templates, here, xp.asarray(templates)[here] * ratio)


def _channels_with(model: Model, sample: str) -> list[str]:
    found = [c for c, s, _ in model.about.slots if s == sample]
    if not found:
        raise ModelError(
            f"{model.about.source}: there is no sample {sample!r}. "
            f"It has {', '.join(model.sample_names)}."
        )
    return [c for c in model.channel_names if c in found]


def _nominal(model: Model, cells: Iterable[tuple[str, str]]) -> Position:
    slots, bins = [], []
    for channel, sample in cells:
        slot, here = _cells(model, channel, sample)
        bins.append(np.arange(here.start, here.stop))
        slots.append(np.full(here.stop - here.start, slot))
    return Position("nominal", (np.concatenate(slots), np.concatenate(bins)))


def _variation(model: Model, channel: str, sample: str, modifier: str, side: str) -> Position:
    slot, bins = _cells(model, channel, sample)
    if side not in SIDES:
        raise ModelError(f"{model.about.source}: a variation is 'hi' or 'lo', not {side!r}.")
    sizes, structure = model.about.sizes, model.about.structure
    row = int(structure.positions[model.index(modifier)])
    used = row < sizes.shapes and structure.histosys_used[row, slot, bins].any()
    if used:
        where = np.arange(bins.start, bins.stop)
        return Position(
            f"histosys_{side}", (np.full_like(where, row), np.full_like(where, slot), where)
        )
    rate = row - (sizes.alphas - sizes.rates)
    number = model.channel_names.index(channel)
    if not (0 <= rate < sizes.rates and structure.normsys_used[rate, slot, number]):
        raise ModelError(
            f"{model.about.source}: channel {channel!r}, sample {sample!r} has no normsys or "
            f"histosys {modifier!r}."
        )
    return Position(f"normsys_{side}", (np.array(rate), np.array(slot), np.array(number)))


def _cells(model: Model, channel: str, sample: str) -> tuple[int, slice]:
    """Slot and bins of a sample in a channel; raises a `ModelError` that lists the known names."""
    bins = model.bins_of(channel)
    slots = {s: slot for c, s, slot in model.about.slots if c == channel}
    if sample not in slots:
        raise ModelError(
            f"{model.about.source}: channel {channel!r} has no sample {sample!r}. "
            f"It has {', '.join(slots)}."
        )
    return slots[sample], bins
