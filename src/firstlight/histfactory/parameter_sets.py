"""The parameters of a model: order, initial values, bounds and constraints, as in pyhf 0.7.6.

Order: by modifier type in pyhf's order, within a type by sorted channels, samples and modifiers;
`staterror` by name. A set has the defaults implied by its modifiers, except for the entries that
the measurement's settings replace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from firstlight.histfactory.channels import MODIFIER_TYPES, Channel, Floats, number_array, placed
from firstlight.histfactory.parameter_defaults import Parts, Use, implied
from firstlight.histfactory.workspace_file import (
    ContentError,
    Json,
    JsonObject,
    described,
    inside,
    require_list,
    require_name,
    require_object,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONSTRAINTS = {
    "histosys": "normal",
    "lumi": "normal",
    "normsys": "normal",
    "shapesys": "poisson",
    "staterror": "normal",
}

#: The types whose parameter is a single number.
_SCALAR = frozenset(("histosys", "lumi", "normfactor", "normsys"))

_SETTINGS = ("name", "inits", "bounds", "auxdata", "factors", "sigmas", "fixed")

_LUMI_HINT = (
    "The luminosity has no default. Add to the parameters of the measurement: "
    '{"name": "lumi", "inits": [1.0], "bounds": [[0.5, 1.5]], "auxdata": [1.0], "sigmas": [0.02]} '
    "with your luminosity and its absolute uncertainty."
)


class ParameterSet(NamedTuple):
    """The parameters of one name, with everything resolved; every array has length `size`."""

    name: str
    scalar: bool
    constraint: str | None  # "normal", "poisson" or None
    types: tuple[str, ...]  # of the modifiers that use it, sorted
    init: Floats
    lower: Floats
    upper: Floats
    fixed: NDArray[np.bool_]
    auxdata: Floats | None
    sigma: Floats | None  # of a normal constraint
    factor: Floats | None  # τ of a poisson constraint: auxdata ~ Poisson(τ · parameter)
    label: str = ""  # for a single parameter named like a bin of another set

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.init)

    @property
    def names(self) -> tuple[str, ...]:
        """One name per parameter, as in pyhf."""
        if self.scalar:
            return (self.label or self.name,)
        return tuple(f"{self.name}[{index}]" for index in range(self.size))


def read_settings(plain: object) -> dict[str, JsonObject]:
    """The settings of a measurement by parameter name; not every name need have a modifier."""
    settings: dict[str, JsonObject] = {}
    for index, entry in enumerate(require_list(plain, "parameters")):
        with inside(f"parameters, entry {index}"):
            checked = require_object(entry, _SETTINGS, ("name",))
            name = require_name(checked)
        if name in settings:
            raise ContentError(
                "has two entries in the settings. Merge them.", f"parameter {name!r}"
            )
        settings[name] = checked
    return settings


def resolve_parameters(
    channels: Sequence[Channel], settings: Mapping[str, Mapping[str, Json]]
) -> tuple[ParameterSet, ...]:
    """All parameter sets in pyhf's order; fails with a `ContentError` that names the parameter."""
    uses = _uses(channels)
    types: dict[str, list[str]] = {}
    for kind in MODIFIER_TYPES:
        # pyhf creates these last, from its sorted list of modifiers.
        for name in sorted(uses[kind]) if kind == "staterror" else uses[kind]:
            types.setdefault(name, []).append(kind)
    if not types:
        raise ContentError(
            "no sample has a modifier, so the model has no parameters. Add at least one."
        )
    sets = []
    for name, kinds in types.items():
        with inside(f"parameter {name!r} ({', '.join(kinds)})"):
            _require_compatible(kinds, [uses[kind][name][0] for kind in kinds])
            sets.append(_resolve(name, kinds, uses[kinds[0]][name], settings.get(name, {})))
    bins = {name for one in sets if not one.scalar for name in one.names}
    return tuple(
        one._replace(label=f"{one.name} ({one.types[0]})") if one.name in bins else one
        for one in sets
    )


def _uses(channels: Sequence[Channel]) -> dict[str, dict[str, list[Use]]]:
    """The uses of each parameter: by type, then name, in the order of pyhf.

    If a parameter is a single number for all its uses, the first use stands for all.
    """
    uses: dict[str, dict[str, list[Use]]] = {kind: {} for kind in MODIFIER_TYPES}
    for channel, sample, modifier in placed(channels):
        named = uses[modifier.type]
        if modifier.name not in named:
            named[modifier.name] = [Use(channel, sample, modifier)]
        elif modifier.type not in _SCALAR:
            named[modifier.name].append(Use(channel, sample, modifier))
    return uses


def _require_compatible(kinds: list[str], first_uses: list[Use]) -> None:
    if len(kinds) == 1 or set(kinds) == {"histosys", "normsys"}:
        return
    places = " and ".join(
        f"{use.modifier.type} ({use.place})"
        for use in first_uses
        if use.modifier.type in (kinds[0], kinds[-1])
    )
    raise ContentError(
        f"is used by {places}. Only normsys and histosys can share a parameter; rename one of them."
    )


def _resolve(
    name: str, kinds: list[str], uses: list[Use], settings: Mapping[str, Json]
) -> ParameterSet:
    kind = kinds[0]
    parts = implied(kind, uses)
    fixed = parts["fixed"]
    assert fixed is not None
    parts.update(_overrides(kind, parts, len(fixed), settings))
    missing = [key for key in ("inits", "bounds", "auxdata") if key in parts and parts[key] is None]
    if missing:
        raise ContentError(f"the measurement does not set its {', '.join(missing)}. {_LUMI_HINT}")
    bounds, fixed_by_settings = parts["bounds"], parts["fixed"]
    constraint = _CONSTRAINTS.get(kind)
    sigma = parts.get("sigmas")
    if constraint == "normal" and sigma is None:
        sigma = np.ones(len(fixed))  # also for a luminosity without sigmas, as in pyhf
    # Bounds [x, x] fix a parameter at x: pyhf's XML import writes constants this way.
    held = bounds[:, 0] == bounds[:, 1]  # type: ignore[index]
    result = ParameterSet(
        name=name,
        scalar=kind in _SCALAR,
        constraint=constraint,
        types=tuple(sorted(kinds)),
        init=_frozen(np.where(held, bounds[:, 0], parts["inits"])),  # type: ignore[index,arg-type]
        lower=_frozen(bounds[:, 0]),  # type: ignore[index]
        upper=_frozen(bounds[:, 1]),  # type: ignore[index]
        fixed=_frozen(fixed_by_settings | held),
        auxdata=_frozen(parts.get("auxdata")),
        sigma=_frozen(sigma),
        factor=_frozen(parts.get("factors")),
    )
    _require_usable(result)
    return result


def _frozen(array: Any) -> Any:
    if array is not None:
        array.setflags(write=False)
    return array


def _overrides(kind: str, parts: Parts, size: int, settings: Mapping[str, Json]) -> Parts:
    """The settings of the measurement as arrays of length `size`."""
    result: Parts = {}
    for key, value in settings.items():
        if key == "name":
            continue
        if key not in parts:
            raise ContentError(f"a {kind} parameter has no {key}. Remove that setting.")
        if key == "fixed":
            if not isinstance(value, bool):
                raise ContentError(f"fixed must be true or false, not {described(value)}.")
            result[key] = np.full(size, value)
            continue
        array = _bounds(value) if key == "bounds" else number_array(value, key)
        if len(array) != size:
            raise ContentError(f"{key} has {len(array)} entries, the parameter has {size}.")
        result[key] = array
    return result


def _bounds(value: object) -> Floats:
    rows = []
    for index, pair in enumerate(require_list(value, "bounds", min_length=1)):
        row = number_array(pair, f"bounds[{index}]")
        if len(row) != 2:
            raise ContentError(f"bounds[{index}] has {len(row)} numbers. Give [lower, upper].")
        rows.append(row)
    return np.array(rows)


def _require_usable(parameters: ParameterSet) -> None:
    """Check that widths are positive, and initial values of free parameters within bounds."""
    columns = (parameters.init, parameters.lower, parameters.upper, parameters.fixed)
    for name, init, lower, upper, held in zip(parameters.names, *columns, strict=True):
        if lower > upper:
            raise ContentError(
                f"the bounds of {name!r} are [{lower}, {upper}]. The lower must not exceed the "
                "upper."
            )
        if not lower <= init <= upper and not held:
            raise ContentError(
                f"{name!r} starts at {init}, outside its bounds [{lower}, {upper}]. Change one."
            )
    for what, values in (("sigmas", parameters.sigma), ("factors", parameters.factor)):
        if values is not None and not (values > 0).all():
            raise ContentError(f"{what} must be above zero; the smallest is {values.min()}.")
    auxdata = parameters.auxdata
    if parameters.constraint == "poisson" and auxdata is not None and auxdata.min() < 0:
        raise ContentError("the auxdata of a Poisson constraint cannot be negative.")
