"""Loads a model from a workspace: `load`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from firstlight.histfactory import layout
from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.interpolation import HISTOSYS_CODES, NORMSYS_CODES
from firstlight.histfactory.model import Arrays, Description, Model, Structure
from firstlight.histfactory.spec import (
    MEASUREMENT_POI,
    MeasurementPoi,
    Specification,
    ignored_observations,
    parse,
)

if TYPE_CHECKING:
    from firstlight.histfactory.patches import Patch


class LoadOptions(TypedDict, total=False):
    """Options of `load`."""

    measurement: str | int | None
    patches: Sequence[Patch]
    interpolation: tuple[str, str]
    poi: str | MeasurementPoi | None
    sizes: layout.Sizes | None


class WorkspaceWarning(UserWarning):
    """Part of a workspace is ignored."""


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
    measurement: name or index; default: the first.
    patches: JSON patches, or choices from a patchset; see `firstlight.histfactory.patches`.
    interpolation: codes of normsys (code1, code4) and histosys (code0, code2, code4p).
    poi: parameter of interest instead of the measurement's, or None for a model without a POI.
    sizes: padded dimensions, such as another model's `about.sizes`, to share its executables;
        `layout.natural_sizes` pads nothing.

    Fails with a `WorkspaceError` that names file, channel, sample and modifier. Observations that
    belong to no channel are ignored, with a `WorkspaceWarning`.
    """
    _require_codes(interpolation)
    spec = parse(
        path_or_dict, measurement=measurement, patches=patches, require_observations=False, poi=poi
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
    """A model from a parsed workspace."""
    sizes = _fitting(sizes, spec)
    grid = layout.lay_out(spec, sizes)
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
        structure=structure,
    )
    return Model(Arrays(**grid.floats), about)


def _require_codes(interpolation: tuple[str, str]) -> None:
    allowed = (NORMSYS_CODES, HISTOSYS_CODES)
    if (
        not isinstance(interpolation, (tuple, list))
        or len(interpolation) != 2
        or any(c not in a for c, a in zip(interpolation, allowed, strict=True))
    ):
        raise ModelError(
            f"interpolation is {interpolation!r}; give (normsys code, histosys code). "
            f"normsys: {', '.join(NORMSYS_CODES)}; histosys: {', '.join(HISTOSYS_CODES)}."
        )


def _fitting(sizes: layout.Sizes | None, spec: Specification) -> layout.Sizes:
    if sizes is None:
        return layout.padded_sizes(spec)
    fields = layout.Sizes._fields
    if len(sizes) != len(fields):
        raise ModelError(
            f"sizes must have {', '.join(fields)}, such as the about.sizes of another model."
        )
    small = layout.shortages(layout.Sizes(*sizes), spec)
    if small:
        raise ModelError(f"{spec.source} does not fit into the sizes given ({'; '.join(small)}).")
    return layout.Sizes(*sizes)
