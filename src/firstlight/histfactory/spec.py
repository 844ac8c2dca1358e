"""A pyhf workspace as one frozen, checked value: `parse` returns a `Specification`.

Reading, patching and checking need only the standard library and NumPy. The parameters agree with
those of pyhf 0.7.6, which is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from firstlight.histfactory.channels import (
    Channel,
    Floats,
    placed,
    read_channels,
    read_observations,
)
from firstlight.histfactory.parameter_sets import ParameterSet, read_settings, resolve_parameters
from firstlight.histfactory.workspace_file import (
    ContentError,
    Json,
    JsonObject,
    described,
    inside,
    listed,
    read_json,
    require_list,
    require_name,
    require_object,
)

if TYPE_CHECKING:
    from firstlight.histfactory.patches import Patch

_WORKSPACE_KEYS = ("channels", "measurements", "observations", "version")
_MODEL_KEYS = ("channels", "parameters", "poi")
_VERSION = "1.0.0"


class MeasurementPoi(Enum):
    """Selects the measurement's parameter of interest, where None would mean no POI."""

    DEFAULT = "the measurement's"


MEASUREMENT_POI = MeasurementPoi.DEFAULT


class Specification(NamedTuple):
    """The content of a likelihood, resolved and in pyhf's order."""

    source: str  # the file, or "workspace"; messages begin with it
    measurement: str  # "" for a model specification, which has none
    poi: str | None
    channels: tuple[Channel, ...]  # sorted by name
    parameter_sets: tuple[ParameterSet, ...]  # in the order of pyhf's `config.par_order`
    observed: Floats | None  # channel by channel; None only without `require_observations`
    unused_settings: tuple[str, ...] = ()  # of parameters that no modifier has
    unused_observations: tuple[str, ...] = ()  # of channels that are not in the model

    @property
    def poi_parameter(self) -> str | None:
        """The parameter of interest as `parameter_names` spells it: `f[0]` of a set of one."""
        names = {one.name: one.names[0] for one in self.parameter_sets if one.size == 1}
        return None if self.poi is None else names.get(self.poi, self.poi)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """One name per parameter, in the order of pyhf's `config.par_names`."""
        return tuple(name for one in self.parameter_sets for name in one.names)


def parse(
    source: str | os.PathLike[str] | Mapping[str, Json],
    *,
    measurement: str | int | None = None,
    patches: Sequence[Patch] = (),
    require_observations: bool = True,
    poi: str | MeasurementPoi | None = MEASUREMENT_POI,
) -> Specification:
    """The specification of one measurement of a workspace, after the patches.

    source: a JSON file or a mapping: a pyhf workspace or, if `require_observations` is false, a
        model specification (channels, and optionally parameters and poi). It is not changed.
    measurement: its name or index; default: the first one.
    patches: applied in order to the whole workspace; see `firstlight.histfactory.patches`.
    poi: the parameter of interest, if not the measurement's; None for no POI.

    Fails with a `WorkspaceError` that says what is wrong, where, and what to do.
    """
    if isinstance(source, Mapping):
        name, plain = "workspace", source
    else:
        name, plain = str(os.fspath(source)), read_json(source)
    try:
        if not isinstance(plain, Mapping):
            raise ContentError(f"must be an object at the top level, not {described(plain)}.")
        plain = dict(plain)
        if patches:
            from firstlight.histfactory.patches import apply_patches  # few workspaces are patched

            plain = apply_patches(plain, patches, name)
        return _specification(name, plain, measurement, require_observations, poi)
    except ContentError as fault:
        raise fault.error(name) from None


def ignored_observations(spec: Specification) -> str:
    """A message about observations without a channel."""
    names = listed(spec.unused_observations)
    return f"the observations of {names} are ignored: the model has no such channel"


def _specification(
    source: str,
    plain: Json,
    measurement: str | int | None,
    require_observations: bool,
    wanted_poi: str | MeasurementPoi | None,
) -> Specification:
    is_model = isinstance(plain, dict) and "measurements" not in plain and "version" not in plain
    is_model = is_model and "observations" not in plain
    if is_model and require_observations and "channels" in plain:
        raise ContentError(
            "has no measurements and no observations, so it is a model specification without data. "
            "Give the workspace, or use Asimov data (--asimov MU --blind)."
        )
    keys = _MODEL_KEYS if is_model else _WORKSPACE_KEYS
    plain = require_object(plain, keys, ["channels"] if is_model else ["channels", "measurements"])
    if plain.get("version", _VERSION) != _VERSION:
        raise ContentError(
            f"version is {described(plain['version'])}; only {_VERSION!r} is supported."
        )
    channels = read_channels(plain["channels"])
    if is_model:
        name, config = _model_config(plain, channels, measurement)
    else:
        name, config = _choose_measurement(plain["measurements"], measurement)
    try:
        settings = read_settings(config.get("parameters", []))
        sets = resolve_parameters(channels, settings)
        poi = _measured_poi(config, sets) if wanted_poi is MEASUREMENT_POI else None
    except ContentError as fault:
        raise (fault if is_model else fault.inside(f"measurement {name!r}")) from None
    if isinstance(wanted_poi, str):
        poi = _resolve_poi(wanted_poi, sets)
    elif wanted_poi is not None and wanted_poi is not MEASUREMENT_POI:
        raise ContentError(
            "poi must be the name of one parameter, or None for no parameter of interest, not "
            f"{described(wanted_poi)}."
        )
    observed: Floats | None = None
    without_channel: tuple[str, ...] = ()
    if "observations" in plain:
        observed, without_channel = read_observations(plain["observations"], channels)
        observed.setflags(write=False)
    elif require_observations:
        raise ContentError(
            "has no 'observations'. Add them, or use Asimov data (--asimov MU --blind)."
        )
    unused = tuple(sorted(set(settings) - {one.name for one in sets}))
    return Specification(source, name, poi, channels, sets, observed, unused, without_channel)


def _model_config(
    plain: JsonObject, channels: Sequence[Channel], measurement: str | int | None
) -> tuple[str, JsonObject]:
    """A model specification is its own measurement; its poi is `mu` by default, as in pyhf 0.7."""
    if measurement is not None:
        raise ContentError(
            f"is a model specification: there is no measurement {measurement!r} to choose."
        )
    factors = (modifier.name for _, _, modifier in placed(channels))
    return "", {"poi": "mu" if "mu" in factors else "", **plain}


def _choose_measurement(plain: object, wanted: str | int | None) -> tuple[str, JsonObject]:
    """The name and the config of the requested measurement."""
    measurements: list[tuple[str, object]] = []
    for index, entry in enumerate(require_list(plain, "measurements", min_length=1)):
        with inside(f"measurement number {index}"):
            checked = require_object(entry, ("name", "config"), ("name", "config"))
            measurements.append((require_name(checked), checked["config"]))
    names = [name for name, _ in measurements]
    if isinstance(wanted, str):
        if wanted not in names:
            raise ContentError(f"has no measurement {wanted!r}. It has {listed(names)}.")
        index = names.index(wanted)
    else:
        index = 0 if wanted is None else wanted
        if type(index) is not int or not -len(names) <= index < len(names):
            raise ContentError(f"has no measurement number {index}. It has {listed(names)}.")
    name, config = measurements[index]
    with inside(f"measurement {name!r}, config"):
        return name, require_object(config, ("poi", "parameters"), ())


def _measured_poi(config: Mapping[str, Json], sets: Sequence[ParameterSet]) -> str | None:
    """The parameter of interest of a measurement; `""` or a missing entry means no POI."""
    poi = config.get("poi", "")
    if not isinstance(poi, str):
        raise ContentError(f"poi must be the name of a parameter, not {described(poi)}.")
    try:
        return _resolve_poi(poi, sets) if poi else None
    except ContentError as fault:
        raise ContentError(
            f"{fault.message} To read a background-only file, choose another POI or none: "
            "poi=NAME or poi=None (--poi NAME, --no-poi)."
        ) from None


def _resolve_poi(poi: str, sets: Sequence[ParameterSet]) -> str:
    """The name of one parameter: a set of size one, or one component of a set."""
    names = [name for one in sets for name in one.names]
    sizes = {one.name: one.size for one in sets}
    if poi in names or sizes.get(poi) == 1:
        return poi
    if poi in sizes:
        raise ContentError(
            f"the parameter of interest {poi!r} has {sizes[poi]} components. Choose one, "
            f"such as {poi + '[0]'!r}."
        )
    import difflib  # only a message needs it

    close = difflib.get_close_matches(poi, names, n=3)
    hint = f"Did you mean {listed(close)}?" if close else f"It has {listed(names)}."
    raise ContentError(f"the parameter of interest {poi!r} is not in the model. {hint}")
