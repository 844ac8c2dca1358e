"""A workspace as an immutable PyTree: returned by `load`, and the argument of everything else.

The leaves of a `Model` are the numbers of the workspace (yields, variations, constraint widths,
settings, data), so `jax.grad(f)(model)` is also a `Model`, with a derivative in place of every
number. Names and wiring are static.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from firstlight.histfactory import layout
from firstlight.histfactory.argument_checks import ModelError, as_numbers, require_number
from firstlight.histfactory.array_types import Array, ArrayLike, Parameters
from firstlight.histfactory.lazy_jax import is_imported, jax, pytree, when_imported
from firstlight.histfactory.likelihood import Data, Prepared, prepare, saturated_nll
from firstlight.histfactory.numpy_or_jax import put
from firstlight.histfactory.precision import float64_scope, is_traced

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float64]"


@pytree
@dataclass(frozen=True, eq=False)
class Arrays:
    """The numbers of a workspace in the padded grid of `layout`; each may be differentiated."""

    nominal: Array  # [slot, bin]
    normsys_lo: Array  # [α of rates, slot, channel]; 1 where there is no normsys
    normsys_hi: Array
    histosys_lo: Array  # [α of shapes, slot, bin]; used where `Structure.histosys_used`
    histosys_hi: Array
    observed: Array  # [bin]
    auxdata: Array  # [parameter], like all below
    sigma: Array
    tau: Array
    init: Array
    lower: Array
    upper: Array


@dataclass(frozen=True, eq=False)
class Structure:
    """The wiring of a model: masks (0 or 1, as floats) and positions."""

    histosys_used: Floats
    normsys_used: Floats
    factor_mask: Floats
    carries_gamma: Floats
    channel_of_bin: Floats
    normal: Floats
    poisson: Floats
    fixed: Floats
    positions: NDArray[np.int64]  # of every public parameter in the internal order


@dataclass(frozen=True, eq=False)
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
    structure: Structure  # compared by its digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Description) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    @property
    def bins(self) -> list[tuple[str, int]]:
        """Channel and number (from 0) of every bin, in the order of the data."""
        return [(name, i) for name, bins in self.channels for i in range(bins)]

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @cached_property
    def kind(self) -> Hashable:
        """`Prepared.kind` of the model, known even while its arrays are traced."""
        s = self.structure
        rates = (2, len(s.normsys_used), math.prod(s.normsys_used.shape[1:]))
        shapes = ((2, *s.histosys_used.shape), rates, s.factor_mask.shape, s.normal.shape)
        return (*shapes, self.codes)

    @cached_property
    def cells(self) -> int:
        """`Prepared.cells` of the model, likewise."""
        slots, bins = self.structure.carries_gamma.shape
        return int(slots * bins * (len(self.structure.normal) - bins))

    @cached_property
    def _key(self) -> tuple[object, ...]:
        import hashlib  # loads OpenSSL, and a first fit compares nothing

        digest = hashlib.sha256()
        for _, array in sorted(vars(self.structure).items()):
            digest.update(array.tobytes())
        named = (getattr(self, f.name) for f in fields(self) if f.name != "structure")
        return (*named, digest.digest())


@dataclass(frozen=True, eq=False)
class Model:
    """A likelihood: the numbers of a workspace, and their names and wiring. Made by `load`."""

    arrays: Arrays
    about: Description

    @cached_property
    def _for_jax(self) -> Arrays:
        """The arrays as JAX arrays; a 32-bit program would convert NumPy arrays to 32 bits."""
        values = {f.name: getattr(self.arrays, f.name) for f in fields(Arrays)}
        if not any(isinstance(value, np.ndarray) for value in values.values()):
            return self.arrays
        with float64_scope(), jax.ensure_compile_time_eval():
            known = {k: jax.device_put(v) for k, v in values.items() if isinstance(v, np.ndarray)}
        return Arrays(**{**values, **known})

    def __reduce__(self) -> tuple[type[Model], tuple[Arrays, Description]]:
        # As NumPy: a 32-bit program would unpickle JAX's 64-bit arrays in 32 bits.
        values = [np.asarray(getattr(self.arrays, f.name)) for f in fields(Arrays)]
        return Model, (Arrays(*values), self.about)

    def __repr__(self) -> str:
        about = (
            f"{self.about.source!r}, measurement={self.about.measurement!r}, "
            f"{len(self.about.channels)} channels, {self.n_bins} bins, "
            f"{len(self.parameter_names)} parameters, poi={self.poi!r}"
        )
        if not self._is_derivative:
            return f"Model({about})"
        channel, sample = self._signal
        return f'ModelGradient({about}; derivatives: .template("{channel}", "{sample}"), ...)'

    @property
    def _is_derivative(self) -> bool:
        """Whether derivatives are in the place of the numbers, as in `jax.grad(f)(model)`.

        In a model, σ and τ of every parameter are above zero. A constraint has at most one of
        them, so a derivative with respect to the other is zero.
        """
        if self._is_traced:
            return False
        try:
            both = np.minimum(np.asarray(self.arrays.sigma), np.asarray(self.arrays.tau))
            return not bool(np.all(both > 0))
        except (RuntimeError, TypeError):  # deleted by a donation; or something else than numbers
            return False

    @property
    def _signal(self) -> tuple[str, str]:
        """Channel and sample of the first template that the POI scales, or of the first one."""
        structure, sizes = self.about.structure, self.about.sizes
        if self.poi is not None:
            row = int(self._order[self.poi_index]) - sizes.alphas
            for channel, sample, slot in self.about.slots:
                if 0 <= row < sizes.factors and np.any(
                    structure.factor_mask[row, slot, self.bins_of(channel)]
                ):
                    return channel, sample
        channel, sample, _ = self.about.slots[0]
        return channel, sample

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

    def bins_of(self, channel: str) -> slice:
        """The bins of a channel in the data."""
        try:
            return self._channel_bins[channel]
        except KeyError:
            raise ModelError(
                f"{self.about.source}: there is no channel {channel!r}. "
                f"It has {', '.join(self.channel_names)}."
            ) from None

    @cached_property
    def _channel_bins(self) -> dict[str, slice]:
        ends = np.cumsum([bins for _, bins in self.about.channels]).tolist()
        return {
            name: slice(end - bins, end)
            for (name, bins), end in zip(self.about.channels, ends, strict=True)
        }

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
    def init(self) -> Array:
        """Suggested starting values, a parameter vector."""
        return self._settings.init[self._order]

    @property
    def lower(self) -> Array:
        return self._settings.lower[self._order]

    @property
    def upper(self) -> Array:
        return self._settings.upper[self._order]

    @cached_property
    def _settings(self) -> Any:
        """Starting values, bounds and data, as NumPy arrays unless traced."""
        names = ("init", "lower", "upper", "auxdata", "observed")
        small = {name: getattr(self.arrays, name) for name in names}
        return SimpleNamespace(
            **{k: v if is_traced(v) else np.asarray(v, np.float64) for k, v in small.items()}
        )

    @property
    def fixed(self) -> NDArray[np.bool_]:
        """True for parameters that the workspace fixes."""
        flags: NDArray[np.bool_] = self.about.structure.fixed[self._order] > 0
        return flags

    @property
    def observed(self) -> Array:
        """Main data: one count per bin, channel by channel."""
        return self._settings.observed[: self.n_bins]

    @property
    def auxdata_names(self) -> tuple[str, ...]:
        """Parameters that have auxiliary data, in the order of the data."""
        return tuple(self.about.parameters[i] for i in self._constrained)

    @property
    def _order(self) -> NDArray[np.int64]:
        return self.about.structure.positions

    @cached_property
    def _constrained(self) -> NDArray[np.int64]:
        structure = self.about.structure
        return np.flatnonzero((structure.normal + structure.poisson)[self._order])

    @cached_property
    def _is_traced(self) -> bool:
        """Whether a JAX transformation traces any of the arrays."""
        values = (getattr(self.arrays, f.name) for f in fields(Arrays))
        return is_imported() and any(isinstance(value, jax.core.Tracer) for value in values)

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

    def vector(self, parameters: Parameters = None) -> Array:
        """A parameter vector, from a mapping of names (others at their init) or from a vector."""
        if parameters is None:
            return self.init
        if isinstance(parameters, Mapping):
            values = self.init
            for name, value in parameters.items():
                index = self.index(name)
                values = put(values, index, require_number(value, f"the value of {name!r}"))
            return values
        vector: Any = parameters
        if isinstance(vector, (list, tuple)):
            vector = as_numbers(vector, "parameters")
        shape = np.shape(vector)
        if not shape or shape[-1] != self.n_parameters:
            raise ModelError(
                f"{self.about.source}: parameters have shape {shape}, but the model has "
                f"{self.n_parameters} parameters. Give one value each, in the order of "
                "model.parameter_names, or a mapping from names to values."
            )
        return cast(Array, vector)

    @cached_property
    def _observed_data(self) -> Data:
        """The data of the workspace."""
        if not self.about.has_observations:
            raise ModelError(
                f"{self.about.source} has no observations. Give data=..., or add them to the file."
            )
        return Data(self._settings.observed, self._settings.auxdata)

    @cached_property
    def _prepared(self) -> Prepared:
        arrays = Arrays(*(np.asarray(getattr(self.arrays, f.name)) for f in fields(Arrays)))
        return prepare(arrays, self.about.structure, self.about.codes, np)

    @cached_property
    def _observed_constants(self) -> float:
        """The part of the negative log-likelihood that depends on the observed data alone."""
        return float(saturated_nll(np.asarray(self._prepared.tau), self._observed_data, np))

    def template(self, *name: str) -> Array:
        """The numbers of a template; in a gradient, the derivatives with respect to them.

        `template("SR", "signal")` returns the yields of a sample in a channel, `template("signal")`
        the yields in all its channels, `template("SR", "signal", "jes", "hi")` a variation: the
        yields of a histosys or the factor of a normsys.
        """
        from firstlight.histfactory.templates import place_of  # fits need no templates

        place = place_of(self, name[0] if len(name) == 1 else name)
        values = getattr(self.arrays, place.array)
        # An array that is not traced stays a number inside an active trace.
        return (values if is_traced(values) else np.asarray(values))[place.where]

    def nominal(self, channel: str, sample: str) -> Array:
        """Nominal yields of one sample in one channel."""
        return self.template(channel, sample)

    def with_nominal(self, yields: Mapping[str | tuple[str, ...], ArrayLike]) -> Model:
        """The same model with other nominal yields: {(channel, sample): values}.

        Variations and constraint widths are unchanged. Differentiable with respect to the values.
        `firstlight.histfactory.templates.exchange` replaces variations, and can scale them along.
        """
        from firstlight.histfactory.templates import exchange

        return exchange(self, yields)


def _flatten(model: Model) -> tuple[tuple[Arrays], Description]:
    return (model._for_jax,), model.about


def _flatten_with_keys(
    model: Model,
) -> tuple[tuple[tuple[jax.tree_util.GetAttrKey, Arrays]], Description]:
    return ((jax.tree_util.GetAttrKey("arrays"), model._for_jax),), model.about


def _unflatten(about: Description, children: tuple[Arrays]) -> Model:
    return Model(children[0], about)


when_imported(
    lambda: jax.tree_util.register_pytree_with_keys(Model, _flatten_with_keys, _unflatten, _flatten)
)
