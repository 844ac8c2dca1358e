"""From the options of a command to a model with its data, checked before anything is computed.

FirstlightError
└── CommandError      contradictory options, or a missing library
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.errors import FirstlightError
from firstlight.histfactory.patches import Patch
from firstlight.histfactory.spec import MEASUREMENT_POI, Specification, ignored_observations, parse

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from firstlight.histfactory.model import Model
    from firstlight.histfactory.workspace_file import JsonObject

SUFFIXES = (".png", ".svg")


class CommandError(FirstlightError):
    """Contradictory options, or a missing library."""


@dataclass(frozen=True, eq=False)
class Job:
    """A model, the data to use, and the fixed parameters."""

    model: Model
    data: NDArray[np.float64] | None  # None: the observed data
    fixed: JsonObject  # as `fit` takes it
    header: JsonObject  # the first entries of every JSON output, the command's name among them
    positive: bool = False  # whether fits must keep all samples positive


def read(options: argparse.Namespace, require_observations: bool = True) -> Specification:
    """The patched workspace, with the parameter of interest that the options choose."""
    if options.no_poi and options.poi is not None:
        raise CommandError("--poi and --no-poi contradict each other. Give one of them.")
    chosen = MEASUREMENT_POI if options.poi is None else options.poi
    return parse(
        options.workspace,
        measurement=options.measurement,
        patches=patches(options),
        require_observations=require_observations,
        poi=None if options.no_poi else chosen,
    )


def patches(options: argparse.Namespace) -> list[Patch]:
    """Files as paths; choices from patchsets as pairs."""
    return [p if isinstance(p, str) else (p[0], p[1]) for p in options.patches]


def prepare(
    options: argparse.Namespace, *, poi: bool = True, plots: tuple[str, ...] = ("plot",)
) -> Job:
    """A model that is ready to fit.

    poi: whether the command needs a free parameter of interest.
    plots: names of the options that hold the path of a plot.
    """
    for name in plots:
        require_plot(getattr(options, name, None))
    blind = getattr(options, "blind", False)
    asimov = getattr(options, "asimov", None)
    if blind and asimov is None:
        raise CommandError("--blind needs --asimov MU: it says how the Asimov data are made.")
    from firstlight.cli.histfactory.output import note

    spec = read(options, require_observations=not blind)
    from firstlight.histfactory.loading import from_specification

    if spec.unused_observations:
        note(ignored_observations(spec))
    model = from_specification(spec, options.interpolation)
    fixed = _fixed(options, spec, model)
    if poi or asimov is not None:
        require_poi(model, fixed, moves=poi)
    header = _header(options, model, fixed, asimov, blind)
    return Job(model, None, fixed, header, getattr(options, "require_positive", False))


def with_asimov(job: Job, mu: float | None, blind: bool) -> Job:
    """The job with Asimov data, if a signal strength is given."""
    if mu is None:
        return job
    from dataclasses import replace

    from firstlight.histfactory.fitting import fit
    from firstlight.histfactory.inference import asimov

    assert job.model.poi is not None
    if job.positive and not blind:
        held = {**job.fixed, job.model.poi: mu}
        fitted = fit(job.model, fixed=held, require_positive=True)
        return replace(job, data=asimov(job.model, parameters=fitted.values))
    if not blind:
        return replace(job, data=asimov(job.model, mu=mu, fixed=job.fixed))
    values = {n: v for n, v in job.fixed.items() if not isinstance(v, bool)}
    return replace(job, data=asimov(job.model, parameters={**values, job.model.poi: mu}))


def require_poi(model: Model, fixed: JsonObject, *, moves: bool = True) -> None:
    """Fails without a parameter of interest, or with one that is fixed."""
    if model.poi is None:
        raise CommandError(
            f"{model.about.source}: measurement {model.about.measurement!r} has no parameter of "
            "interest. Name one with --poi NAME."
        )
    held = fixed.get(model.poi, bool(model.fixed[model.poi_index]))
    if moves and held is not False:
        by = "--fix" if model.poi in fixed else f"measurement {model.about.measurement!r}"
        raise CommandError(
            f"{model.about.source}: the parameter of interest {model.poi!r} is fixed by {by}. "
            f"Free it: --free {model.poi}, without --fix."
        )


def _fixed(options: argparse.Namespace, spec: Specification, model: Model) -> JsonObject:
    """--fix and --free per parameter; the name of a set stands for all its components."""
    components = {one.name: one.names for one in spec.parameter_sets}
    fixed: JsonObject = {}
    asked = [(n, True if v is None else v) for n, v in options.fix]
    for name, value in [*asked, *((n, False) for n in options.free)]:
        for one in components.get(name, (name,)):
            index = model.index(one)
            # True == 1.0 and False == 0.0 in Python, but they mean different things here.
            before = fixed.get(one, value)
            if (type(before), before) != (type(value), value):
                raise CommandError(f"{one!r} is given twice, with --fix or --free. Choose one.")
            if not isinstance(value, bool):
                _require_inside(model, one, index, value)
            fixed[one] = value
    return fixed


def _require_inside(model: Model, name: str, index: int, value: float) -> None:
    low, high = float(model.lower[index]), float(model.upper[index])
    if not low <= value <= high:
        raise CommandError(f"--fix {name}={value:g}: outside its bounds [{low:g}, {high:g}].")


def _header(
    options: argparse.Namespace, model: Model, fixed: JsonObject, asimov: float | None, blind: bool
) -> JsonObject:
    data = "observed" if asimov is None else {"asimov": asimov, "blind": blind}
    return {
        "command": options.command,
        "workspace": os.fspath(options.workspace),
        "measurement": model.about.measurement,
        "poi": model.poi,
        "interpolation": list(options.interpolation),
        "data": data,
        "fixed": fixed,
    }


def require_plot(path: Path | None) -> None:
    """Fails early if the plot could not be written."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise CommandError(f"{path}: plots are .png or .svg files. Use one of these suffixes.")
    if not path.parent.is_dir():
        raise CommandError(f"{path}: directory {path.parent} does not exist. Create it first.")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise CommandError(f"{path}: not writable. Check its permissions, or choose another path.")
    if find_spec("matplotlib") is None:
        raise CommandError(
            "plots need matplotlib, which is not installed: pip install 'firstlight[plots]'"
        )


def draw(path: Path | None, figure: Callable[[ModuleType], Figure]) -> None:
    """Write a plot if a path is given; `figure` makes it with the module `plots`."""
    if path is None:
        return
    from firstlight.histfactory import plots
    from firstlight.histfactory.figure_style import save

    save(figure(plots), path)
