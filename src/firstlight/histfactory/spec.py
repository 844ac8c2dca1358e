"""A pyhf workspace as one frozen, checked value: `parse` gives a `Specification`.

Reading, patching and checking need the standard library and numpy only. What the parameters are
agrees with pyhf 0.7.6, without importing it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstlight.histfactory.channels import (
    Channel,
    Floats,
    Modifier,
    Sample,
    read_channels,
    read_observations,
)
from firstlight.histfactory.parameter_sets import ParameterSet, read_settings, resolve_parameters
from firstlight.histfactory.patches import Patch, apply_patches
from firstlight.histfactory.workspace_file import (
    ContentError,
    WorkspaceError,
    described,
    listed,
    read_json,
    require_list,
    require_name,
    require_object,
)

__all__ = [
    "Channel",
    "Modifier",
    "ParameterSet",
    "Patch",
    "Sample",
    "Specification",
    "WorkspaceError",
    "parse",
]

_WORKSPACE_KEYS = ("channels", "measurements", "observations", "version")
_MODEL_KEYS = ("channels", "parameters", "poi")
_VERSION = "1.0.0"


@dataclass(frozen=True, eq=False)
class Specification:
    """Everything that a likelihood needs, resolved and in pyhf's order."""

    source: str  # the file, or "workspace": what messages begin with
    measurement: str  # "" for a model specification, which has none
    poi: str | None
    channels: tuple[Channel, ...]  # sorted by name
    parameter_sets: tuple[ParameterSet, ...]  # in the order of pyhf's `config.par_order`
    observed: Floats | None  # of all channels in turn; None only where the caller allowed it
    unused_settings: tuple[str, ...] = ()  # of parameters that no modifier has

    @property
    def auxdata_order(self) -> tuple[str, ...]:
        """The names of the constrained parameter sets."""
        return tuple(one.name for one in self.parameter_sets if one.auxdata is not None)

    @property
    def auxdata(self) -> Floats:
        """The auxiliary data of all constrained parameter sets in turn."""
        parts = [one.auxdata for one in self.parameter_sets if one.auxdata is not None]
        return np.concatenate([np.zeros(0), *parts])

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """One name a parameter, in the order of pyhf's `config.par_names`."""
        return tuple(name for one in self.parameter_sets for name in one.names)


def parse(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    measurement: str | int | None = None,
    patches: Sequence[Patch] = (),
    require_observations: bool = True,
) -> Specification:
    """The specification of one measurement of a workspace, after the patches.

    source: a JSON file or a mapping: a pyhf workspace, or a model specification (channels, and
        perhaps parameters and poi) if `require_observations` is false. It is not changed.
    measurement: its name or its index; the first one if not given.
    patches: applied in order to the whole workspace, see `firstlight.histfactory.patches`.

    Fails with `WorkspaceError` that says what is wrong, where, and what to do.
    """
    if isinstance(source, Mapping):
        name, plain = "workspace", source
    else:
        name, plain = str(os.fspath(source)), read_json(source)
    try:
        if not isinstance(plain, Mapping):
            raise ContentError(f"must be an object at the top level, not {described(plain)}.")
        patched = apply_patches(dict(plain), patches, name) if patches else dict(plain)
        return _specification(name, patched, measurement, require_observations)
    except ContentError as fault:
        raise fault.error(name) from None


def _specification(
    source: str, plain: Any, measurement: str | int | None, require_observations: bool
) -> Specification:
    is_model = isinstance(plain, dict) and "measurements" not in plain and "version" not in plain
    is_model = is_model and "observations" not in plain
    if is_model and require_observations and "channels" in plain:
        raise ContentError(
            "has no measurements and no observations, so it is a model specification without data. "
            "Give the workspace, or pass require_observations=False."
        )
    keys = _MODEL_KEYS if is_model else _WORKSPACE_KEYS
    plain = require_object(plain, keys, ["channels"] if is_model else ["channels", "measurements"])
    if plain.get("version", _VERSION) != _VERSION:
        raise ContentError(f"version is {described(plain['version'])}; only {_VERSION!r} is known.")
    channels = read_channels(plain["channels"])
    if is_model:
        name, config = _model_config(plain, channels, measurement)
    else:
        name, config = _choose_measurement(plain["measurements"], measurement)
    try:
        settings = read_settings(config.get("parameters", []))
        sets = resolve_parameters(channels, settings)
        poi = _resolve_poi(config.get("poi", ""), sets)
    except ContentError as fault:
        raise (fault if is_model else fault.inside(f"measurement {name!r}")) from None
    observed = None
    if "observations" in plain:
        observed = read_observations(plain["observations"], channels)
        observed.setflags(write=False)
    elif require_observations:
        raise ContentError("has no 'observations'. Add them, or pass require_observations=False.")
    unused = tuple(sorted(set(settings) - {one.name for one in sets}))
    return Specification(source, name, poi, channels, sets, observed, unused)


def _model_config(
    plain: dict[str, Any], channels: Sequence[Channel], measurement: str | int | None
) -> tuple[str, dict[str, Any]]:
    """A model specification is its own measurement; its poi is `mu` by default, as pyhf's."""
    if measurement is not None:
        raise ContentError(
            f"is a model specification: there is no measurement {measurement!r} to choose."
        )
    factors = (m.name for c in channels for s in c.samples for m in s.modifiers)
    return "", {"poi": "mu" if "mu" in factors else "", **plain}


def _choose_measurement(plain: object, wanted: str | int | None) -> tuple[str, dict[str, Any]]:
    """The name and the config of the measurement that was asked for."""
    measurements: list[tuple[str, object]] = []
    for index, entry in enumerate(require_list(plain, "measurements", least=1)):
        try:
            checked = require_object(entry, ("name", "config"), ("name", "config"))
            measurements.append((require_name(checked), checked["config"]))
        except ContentError as fault:
            raise fault.inside(f"measurement number {index}") from None
    names = [name for name, _ in measurements]
    if isinstance(wanted, str):
        if wanted not in names:
            raise ContentError(f"has no measurement {wanted!r}. It has {listed(names)}.")
        index = names.index(wanted)
    else:
        index = 0 if wanted is None else wanted
        if not isinstance(index, int) or not -len(names) <= index < len(names):
            raise ContentError(f"has no measurement number {index}. It has {listed(names)}.")
    name, config = measurements[index]
    try:
        return name, require_object(config, ("poi", "parameters"), ())
    except ContentError as fault:
        raise fault.inside(f"measurement {name!r}, config") from None


def _resolve_poi(poi: object, sets: Sequence[ParameterSet]) -> str | None:
    """The parameter of interest; `""` and an absent one mean that there is none."""
    if poi == "":
        return None
    if not isinstance(poi, str):
        raise ContentError(f"poi must be the name of a parameter, not {described(poi)}.")
    found = next((one for one in sets if one.name == poi), None)
    if found is None:
        names = [one.name for one in sets]
        import difflib  # only a message needs it

        close = difflib.get_close_matches(poi, names, n=3)
        hint = f"Did you mean {listed(close)}?" if close else f"There is {listed(names)}."
        raise ContentError(f"the parameter of interest {poi!r} is not in the model. {hint}")
    if found.size > 1:
        raise ContentError(
            f"the parameter of interest {poi!r} has {found.size} components. Choose a single one."
        )
    return poi
