"""A workspace as an immutable PyTree: what `load` gives and everything else takes.

The leaves of a `Model` are the numbers of the workspace (yields, variations, constraint widths,
settings, data), so `jax.grad(f)(model)` is again a `Model`, with a derivative in the place of every
number. Names and the wiring are static.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from firstlight.errors import FirstlightError
from firstlight.histfactory import layout
from firstlight.histfactory.interpolation import HISTOSYS_CODES, NORMSYS_CODES
from firstlight.histfactory.likelihood import Data, Prepared, prepare, saturated_nll
from firstlight.histfactory.precision import float64_scope, is_traced
from firstlight.histfactory.spec import (
    MEASUREMENT_POI,
    MeasurementPoi,
    Patch,
    Specification,
    WorkspaceError,
    ignored_observations,
    parse,
)

Floats = NDArray[np.float64]


class WorkspaceWarning(UserWarning):
    """Part of a workspace that takes no part in the model."""


class ModelError(FirstlightError):
    """Arguments that do not fit the model: unknown names, wrong lengths, no POI."""


def require_number(value: Any, what: str) -> Any:
    """A finite number, or one that is traced."""
    if is_traced(value) and not np.ndim(value):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ModelError(f"{what} is {value!r}; it must be a number.") from None
    if not np.isfinite(number):
        raise ModelError(f"{what} is {number}; it must be finite.")
    return number


def require_finite(values: Any, what: str) -> Any:
    """Finite numbers, or traced ones."""
    if not is_traced(values) and not np.all(np.isfinite(values)):
        raise ModelError(f"{what} must be finite numbers.")
    return values


def as_numbers(values: Any, what: str) -> Any:
    """An array of float64 from what looks like one; traced values are stacked."""
    if is_traced(values):
        return jnp.asarray(values)
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ModelError(f"{what} must be numbers, one a place.") from None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Arrays:
    """The numbers of a workspace in the padded grid of `layout`; each may be differentiated."""

    nominal: Any  # [slot, bin]
    normsys_lo: Any  # [α of rates, slot, channel]; 1 where there is none
    normsys_hi: Any
    histosys_lo: Any  # [α of shapes, slot, bin]; used where `Structure.histosys_used`
    histosys_hi: Any
    observed: Any  # [bin]
    auxdata: Any  # [parameter], as all below
    sigma: Any
    tau: Any
    init: Any
    lower: Any
    upper: Any


@dataclass(frozen=True, eq=False)
class Structure:
    """What a model's numbers mean: masks and positions, 0 and 1 as floats."""

    histosys_used: Floats
    normsys_used: Floats
    factor_mask: Floats
    carries_gamma: Floats
    channel_of_bin: Floats
    normal: Floats
    poisson: Floats
    fixed: Floats
    slot: Floats  # internal position of every public parameter


@dataclass(frozen=True)
class Description:
    """Names, order and wiring of a model; equal descriptions share compiled programs."""

    source: str
    measurement: str
    channels: tuple[tuple[str, int], ...]  # name and bins, in the order of the data
    slots: tuple[tuple[str, str, int], ...]  # channel, sample, slot
    parameters: tuple[str, ...]  # in the order of parameter vectors
    types: tuple[tuple[str, ...], ...]  # modifier types of each parameter
    poi: str | None
    has_observations: bool
    codes: tuple[str, str]
    sizes: layout.Sizes
    wiring: bytes  # the content of `structure`, which therefore takes no part in comparisons
    structure: Structure = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Description) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in fields(self) if f.name != "structure")


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False)
class Model:
    """A likelihood: the arrays of a workspace and what they mean. Made by `load`."""

    arrays: Arrays
    about: Description

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("arrays"), self.arrays),), self.about

    def tree_flatten(self) -> Any:
        return (self.arrays,), self.about

    @classmethod
    def tree_unflatten(cls, about: Description, children: Any) -> Model:
        return cls(children[0], about)

    def __reduce__(self) -> Any:
        # As NumPy: JAX would read its own 64-bit arrays back with 32 bits in a 32-bit program.
        return Model, (jax.tree.map(np.asarray, self.arrays), self.about)

    def __repr__(self) -> str:
        n = len(self.parameter_names)
        return (
            f"Model({self.about.source!r}, measurement={self.about.measurement!r}, "
            f"{len(self.about.channels)} channels, {self.n_bins} bins, {n} parameters, "
            f"poi={self.poi!r})"
        )

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names in the order of parameter vectors, which is pyhf's."""
        return self.about.parameters

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Names in the order of the data, which is pyhf's (sorted)."""
        return tuple(name for name, _ in self.about.channels)

    @property
    def sample_names(self) -> tuple[str, ...]:
        """All sample names, sorted."""
        return tuple(sorted({sample for _, sample, _ in self.about.slots}))

    @property
    def n_parameters(self) -> int:
        return len(self.about.parameters)

    @property
    def n_bins(self) -> int:
        return sum(bins for _, bins in self.about.channels)

    @property
    def poi(self) -> str | None:
        """The parameter of interest."""
        return self.about.poi

    @property
    def poi_index(self) -> int:
        """Position of the parameter of interest in parameter vectors."""
        if self.about.poi is None:
            raise ModelError(
                f"{self.about.source}: measurement {self.about.measurement!r} has no parameter of "
                "interest. Name one: load(..., poi=...)."
            )
        return self.index(self.about.poi)

    @property
    def init(self) -> Any:
        """Suggested starting values, a parameter vector."""
        return self.public(self.settings.init)

    @property
    def lower(self) -> Any:
        return self.public(self.settings.lower)

    @property
    def upper(self) -> Any:
        return self.public(self.settings.upper)

    @cached_property
    def settings(self) -> Any:
        """Starting values, bounds and data where they are needed: on the host unless traced."""
        names = ("init", "lower", "upper", "auxdata", "observed")
        small = {name: getattr(self.arrays, name) for name in names}
        return SimpleNamespace(
            **{k: v if is_traced(v) else np.asarray(v, np.float64) for k, v in small.items()}
        )

    @property
    def fixed(self) -> NDArray[np.bool_]:
        """Parameters that the workspace holds constant."""
        flags: NDArray[np.bool_] = self.about.structure.fixed[self._slot] > 0
        return flags

    @property
    def observed(self) -> Any:
        """Main data: one count a bin, channels in turn."""
        return self.settings.observed[: self.n_bins]

    @property
    def auxdata_names(self) -> tuple[str, ...]:
        """Parameters that have auxiliary data, in the order of the data."""
        return tuple(self.about.parameters[i] for i in self._constrained)

    @cached_property
    def _slot(self) -> NDArray[np.int64]:
        return self.about.structure.slot.astype(np.int64)

    @cached_property
    def _constrained(self) -> NDArray[np.int64]:
        structure = self.about.structure
        return np.flatnonzero((structure.normal + structure.poisson)[self._slot])

    @cached_property
    def is_traced(self) -> bool:
        """Does a JAX transformation follow any of its arrays?"""
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self.arrays))

    # --- between public vectors and the padded internal order -------------------------------------

    def public(self, internal: Any) -> Any:
        """A parameter vector from internal order; NumPy unless it is traced."""
        if is_traced(internal):
            return internal[..., self._slot]
        return np.asarray(internal)[..., self._slot]

    def internal(self, vector: Any, neutral: Any = None) -> Any:
        """Internal order from a vector (the last axis); what is padding takes `neutral` values."""
        neutral = self.settings.init if neutral is None else neutral
        if is_traced(vector, neutral):
            vector = jnp.asarray(vector, jnp.float64)
            shape = (*vector.shape[:-1], self.about.sizes.parameters)
            return jnp.broadcast_to(neutral, shape).at[..., self._slot].set(vector)
        vector = np.asarray(vector, np.float64)
        filled = np.empty((*vector.shape[:-1], self.about.sizes.parameters))
        filled[...] = neutral
        filled[..., self._slot] = vector
        return filled

    def members(self, name: str) -> list[str]:
        """The parameters that a name stands for: itself, or all of a set (`staterror_SR`)."""
        if not isinstance(name, str):
            raise ModelError(
                f"{self.about.source}: parameters are called by their names, not by {name!r}."
            )
        members = [p for p in self.about.parameters if p.rpartition("[")[0] == name]
        return members or [self.about.parameters[self.index(name)]]

    def index(self, name: str) -> int:
        """Position of a parameter in parameter vectors."""
        try:
            return self._positions[name]
        except KeyError:
            raise ModelError(f"{self.about.source}: {self._unknown(name)}") from None

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.about.parameters)}

    def _unknown(self, name: str) -> str:
        import difflib

        close = difflib.get_close_matches(str(name), self.parameter_names, 3)
        hint = f"Did you mean {', '.join(close)}?" if close else "See model.parameter_names."
        return f"there is no parameter {name!r}. {hint}"

    def vector(self, parameters: Any = None) -> Any:
        """A parameter vector from a mapping of names (others at their init), or as it is."""
        if parameters is None:
            return self.init
        if isinstance(parameters, Mapping):
            values: Any = self.init
            traced = is_traced(values, dict(parameters))
            values = jnp.asarray(values) if traced else np.array(values)
            for name, value in parameters.items():
                index = self.index(name)
                checked = require_number(value, f"the value of {name!r}")
                if traced:
                    values = values.at[index].set(checked)
                else:
                    values[index] = checked
            return values
        if isinstance(parameters, (list, tuple)):
            parameters = as_numbers(parameters, "parameters")
        shape = np.shape(parameters)
        if not shape or shape[-1] != self.n_parameters:
            raise ModelError(
                f"{self.about.source}: parameters have shape {shape}, the model has "
                f"{self.n_parameters} of them. Give one value each in the order of "
                "model.parameter_names, or a mapping of names to values."
            )
        return parameters

    def data(self, values: Any = None, *, batch: bool = False) -> Data:
        """Data in internal form, from None (observed), main, main + auxiliary, or `Data`.

        batch: whether there may be leading axes.
        """
        if isinstance(values, Data):
            return values
        if values is None:
            return self.observed_data
        n_main, n_aux = self.n_bins, len(self._constrained)
        values = as_numbers(values, "data")
        shape = np.shape(values)
        if len(shape) > 1 and not batch:
            raise ModelError(
                f"{self.about.source}: data have shape {shape}, which is more than one data set. "
                "Fit many with toys(model, data=...), or use jax.vmap."
            )
        if not shape or shape[-1] not in (n_main, n_main + n_aux):
            raise ModelError(
                f"{self.about.source}: data have shape {shape}; expected {n_main} main counts, or "
                f"{n_main + n_aux} with auxiliary data (channels {', '.join(self.channel_names)})."
            )
        xp: Any = jnp if is_traced(values) else np
        values = xp.asarray(values, np.float64)
        if xp is np:
            self._require_possible(values, n_main)
        axes = shape[:-1]
        padding = xp.zeros((*axes, self.about.sizes.bins - n_main))
        main = xp.concatenate([values[..., :n_main], padding], axis=-1)
        if shape[-1] == n_main:
            return Data(
                main, xp.broadcast_to(self.settings.auxdata, (*axes, self.about.sizes.parameters))
            )
        where = self._slot[self._constrained]
        if xp is jnp or is_traced(self.settings.auxdata):
            aux = jnp.broadcast_to(self.settings.auxdata, (*axes, self.about.sizes.parameters))
            aux = aux.at[..., where].set(values[..., n_main:])
        else:
            aux = np.empty((*axes, self.about.sizes.parameters))
            aux[...] = self.settings.auxdata
            aux[..., where] = values[..., n_main:]
        return Data(main, aux)

    def _require_possible(self, values: Floats, n_main: int) -> None:
        main, aux = values[..., :n_main], values[..., n_main:]
        if not np.all(np.isfinite(values)):
            raise ModelError(f"{self.about.source}: data must be finite numbers.")
        counts = self.about.structure.poisson[self._slot[self._constrained]] > 0
        if np.any(main < 0) or (aux.size and np.any(aux[..., counts] < 0)):
            raise ModelError(f"{self.about.source}: counts cannot be negative.")

    def data_vector(self, data: Data) -> Any:
        """Main and auxiliary data as one vector in pyhf's order."""
        where = self._slot[self._constrained]
        xp: Any = jnp if is_traced(data) else np
        main, aux = xp.asarray(data.main), xp.asarray(data.aux)
        return xp.concatenate([main[..., : self.n_bins], aux[..., where]], axis=-1)

    @cached_property
    def observed_data(self) -> Data:
        """The data of the workspace."""
        if not self.about.has_observations:
            raise ModelError(
                f"{self.about.source} has no observations. Give data=..., or add them to the file."
            )
        return Data(self.settings.observed, self.settings.auxdata)

    # --- ready for evaluation ---------------------------------------------------------------------

    @property
    def prepared(self) -> Prepared:
        """The arrays that evaluation needs; made once for a model that is not traced."""
        if self.is_traced:
            arrays = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), self.arrays)
            return prepare(arrays, self.about.structure, self.about.codes)
        return self._prepared

    @cached_property
    def _prepared(self) -> Prepared:
        # In NumPy: nothing to compile, and no trace that happens to be open records it.
        arrays = jax.tree.map(lambda a: np.asarray(a, np.float64), self.arrays)
        ready = prepare(arrays, self.about.structure, self.about.codes, np)
        with float64_scope(), jax.ensure_compile_time_eval():
            on_device: Prepared = jax.device_put(ready)
            return on_device

    @cached_property
    def observed_constants(self) -> float:
        """The part of the negative log-likelihood that depends on the observed data alone."""
        return float(saturated_nll(np.asarray(self._prepared.tau), self.observed_data, np))

    # --- swapping numbers -------------------------------------------------------------------------

    def nominal(self, channel: str, sample: str) -> Any:
        """Nominal yields of one sample in one channel."""
        slot, bins = self.place(channel, sample)
        yields = self.arrays.nominal
        # What is not traced is a number also where a trace is open.
        return (yields if is_traced(yields) else np.asarray(yields))[slot, bins]

    def with_nominal(self, yields: Mapping[Any, Any]) -> Model:
        """The same model with other nominal yields: {(channel, sample): values}.

        Variations and constraint widths stay; differentiable in the values. More kinds of
        templates, and variations that follow: `templates.exchange`.
        """
        from firstlight.histfactory.templates import exchange

        return exchange(self, yields)

    def replace(self, **arrays: Any) -> Model:
        """The same model with other arrays (fields of `Arrays`, in the padded grid)."""
        for name, array in arrays.items():
            known = getattr(self.arrays, name, None)
            if known is None:
                names = ", ".join(f.name for f in fields(Arrays))
                raise ModelError(f"a model has no array {name!r}. It has {names}.")
            if np.shape(array) != known.shape:
                raise ModelError(
                    f"{name} has shape {np.shape(array)}, that of the model {known.shape}."
                )
        if not is_traced(arrays):
            with float64_scope(), jax.ensure_compile_time_eval():
                arrays = {k: jax.device_put(np.asarray(v, np.float64)) for k, v in arrays.items()}
        return Model(replace(self.arrays, **arrays), self.about)

    def place(self, channel: str, sample: str) -> tuple[int, slice]:
        """Slot and bins of a sample in a channel; raises `ModelError` with what there is."""
        begin = 0
        for name, bins in self.about.channels:
            if name == channel:
                break
            begin += bins
        else:
            raise ModelError(
                f"{self.about.source}: there is no channel {channel!r}. "
                f"It has {', '.join(self.channel_names)}."
            )
        for c, s, slot in self.about.slots:
            if (c, s) == (channel, sample):
                return slot, slice(begin, begin + bins)
        present = ", ".join(s for c, s, _ in self.about.slots if c == channel)
        raise ModelError(
            f"{self.about.source}: channel {channel!r} has no sample {sample!r}. It has {present}."
        )


def load(
    path_or_dict: str | os.PathLike[str] | Mapping[str, Any],
    measurement: str | int | None = None,
    patches: Sequence[Patch] = (),
    interpolation: tuple[str, str] = ("code4", "code4p"),
    *,
    poi: str | MeasurementPoi | None = MEASUREMENT_POI,
    sizes: layout.Sizes | None = None,
) -> Model:
    """A model from a pyhf JSON workspace.

    path_or_dict: a JSON file, or its content.
    measurement: name or index; the first if not given.
    patches: JSON patches, or choices from a patchset; see `firstlight.histfactory.patches`.
    interpolation: codes of normsys (code1, code4) and histosys (code0, code2, code4p).
    poi: another parameter of interest than the measurement's, or None for a model without one.
    sizes: padded dimensions, such as another model's `about.sizes`, to share its executables;
        `layout.natural_sizes` pads nothing.

    Fails with `WorkspaceError`, which names file, channel, sample and modifier. Warns of
    observations that belong to no channel (`WorkspaceWarning`): they take no part.
    """
    _require_codes(interpolation)
    spec = parse(
        path_or_dict,
        measurement=measurement,
        patches=patches,
        require_observations=False,
        poi=poi,
    )
    if spec.unused_observations:
        warnings.warn(
            f"{spec.source}: {ignored_observations(spec)}", WorkspaceWarning, stacklevel=2
        )
    return from_specification(spec, interpolation, sizes=sizes)


def from_specification(
    spec: Specification,
    interpolation: tuple[str, str] = ("code4", "code4p"),
    *,
    sizes: layout.Sizes | None = None,
) -> Model:
    """A model from a workspace that is parsed already."""
    sizes = _fitting(sizes, spec)
    grid = layout.lay_out(spec, sizes)
    with float64_scope(), jax.ensure_compile_time_eval():
        arrays = Arrays(**jax.device_put(grid.floats))
    structure = Structure(**grid.structure)
    sets = spec.parameter_sets
    about = Description(
        source=spec.source,
        measurement=spec.measurement,
        channels=tuple((c.name, c.bins) for c in spec.channels),
        slots=tuple((c, s, slot) for (c, s), slot in grid.slots.items()),
        parameters=spec.parameter_names,
        types=tuple(one.types for one in sets for _ in range(one.size)),
        poi=spec.poi_parameter,
        has_observations=spec.observed is not None,
        codes=(interpolation[0], interpolation[1]),
        sizes=sizes,
        wiring=_digest(grid.structure),
        structure=structure,
    )
    return Model(arrays, about)


def _digest(structure: Mapping[str, Floats]) -> bytes:
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(structure):
        digest.update(structure[name].tobytes())
    return digest.digest()


def _require_codes(interpolation: tuple[str, str]) -> None:
    allowed = (NORMSYS_CODES, HISTOSYS_CODES)
    if (
        not isinstance(interpolation, (tuple, list))
        or len(interpolation) != 2
        or any(c not in a for c, a in zip(interpolation, allowed, strict=True))
    ):
        raise ModelError(
            f"interpolation {interpolation!r} is not (normsys code, histosys code). "
            f"normsys: {', '.join(NORMSYS_CODES)}; histosys: {', '.join(HISTOSYS_CODES)}."
        )


def _fitting(sizes: layout.Sizes | None, spec: Specification) -> layout.Sizes:
    if sizes is None:
        return layout.padded_sizes(spec)
    fields = layout.Sizes._fields
    if len(sizes) != len(fields):
        raise ModelError(f"sizes are {', '.join(fields)}: give all, such as about.sizes.")
    small = layout.shortages(layout.Sizes(*sizes), spec)
    if small:
        raise ModelError(f"{spec.source} does not fit into the sizes given ({'; '.join(small)}).")
    return layout.Sizes(*sizes)


__all__ = ["Arrays", "Description", "Model", "ModelError", "WorkspaceError", "load"]
