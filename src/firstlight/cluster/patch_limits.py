"""Upper limits for all signals of a patchset, one per patch, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from firstlight.cluster.checkpoint import Arrays
from firstlight.cluster.computing import Progress, computed
from firstlight.cluster.jobs import Piece, cut, digest, positive
from firstlight.histfactory.argument_checks import ModelError
from firstlight.histfactory.engine import Eager, eager_engine
from firstlight.histfactory.exclusion import HypothesisTest, Setup
from firstlight.histfactory.fitting import Fixed, as_fixed
from firstlight.histfactory.hypotheses import require_statistic
from firstlight.histfactory.internal_order import data_of
from firstlight.histfactory.limits import UpperLimit, find_limits
from firstlight.histfactory.loading import load
from firstlight.histfactory.model import Model
from firstlight.histfactory.patches import Patch, patches_of
from firstlight.histfactory.workspace_file import read_json

#: About so many fits make one limit with its bands: they decide whether compiling pays.
_FITS_PER_LIMIT = 60


@dataclass(frozen=True)
class PatchLimit:
    """The upper limit on one patch's signal."""

    name: str
    values: tuple[float | str, ...]  # of the patch, such as masses
    limit: UpperLimit


def upper_limits(
    workspace: str | os.PathLike[str] | Mapping[str, Any],
    patchset: str | os.PathLike[str] | Mapping[str, Any],
    level: float = 0.05,
    *,
    names: Sequence[str] | None = None,
    measurement: str | int | None = None,
    patches: Sequence[Patch] = (),
    interpolation: tuple[str, str] = ("code4", "code4p"),
    poi: str | None = None,
    fixed: Fixed = None,
    test_statistic: str = "qtilde",
    require_positive: bool = False,
    on: str | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> list[PatchLimit]:
    """The upper limits for all patches of a patchset, or for those named, in its order.

    patches: applied before the patch of the patchset. fixed: as for `histfactory.fit`. The rest is
    as for `histfactory.load` and `histfactory.upper_limit`.
    """
    require_statistic(test_statistic)
    if not (isinstance(level, float) and 0 < level < 1):
        raise ModelError(f"level is {level!r}; give a probability between 0 and 1, such as 0.05.")
    content = workspace if isinstance(workspace, Mapping) else read_json(os.fspath(workspace))
    signals = patchset if isinstance(patchset, Mapping) else read_json(os.fspath(patchset))
    known = patches_of(signals, names, "patchset" if signals is patchset else str(patchset))
    options: dict[str, Any] = {"measurement": measurement, "interpolation": interpolation}
    options |= {} if poi is None else {"poi": poi}
    job = LimitJob(
        content,
        signals,
        tuple(known),
        tuple(patches),
        options,
        fixed,
        level,
        test_statistic,
        require_positive,
    ).decided()
    with computed(job, on, checkpoint, resume, progress) as finished:
        found = [arrays for _, arrays in finished.parts()]
    return [
        PatchLimit(name, tuple(values), _limit(arrays, level))
        for (name, values), arrays in zip(known.items(), found, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class LimitJob:
    """One piece per patch; the node that fits a model also builds it, which takes a while."""

    workspace: Mapping[str, Any]
    patchset: Mapping[str, Any]
    names: tuple[str, ...]
    patches: tuple[Patch, ...]
    options: Mapping[str, Any]
    fixed: Fixed
    level: float
    test_statistic: str
    require_positive: bool = False
    compiled: bool = False

    def decided(self) -> LimitJob:
        fits = _FITS_PER_LIMIT * len(self.names)
        return replace(self, compiled=Eager(self.model).deciding(fits).compiled is True)

    @cached_property
    def model(self) -> Model:
        """The model of the first patch."""
        return self._model(self.names[0])

    def _model(self, name: str, **options: Any) -> Model:
        chosen = (*self.patches, (self.patchset, name))
        return load(self.workspace, patches=chosen, **self.options, **options)

    def identity(self) -> Mapping[str, str]:
        from firstlight import __version__

        return {
            "work": f"limits ({self.test_statistic}){positive(self.require_positive)}",
            "model": digest(self.model),
            "patches": ", ".join(self.names),
            "level": repr(self.level),
            "fixed": repr(sorted(as_fixed(self.model, self.fixed).items())),
            "engine": "XLA" if self.compiled else "NumPy",
            "firstlight": __version__,
        }

    def pieces(self) -> list[Piece]:
        return cut([len(self.names)], 1)

    def compute(self, piece: Piece) -> Arrays:
        model, compiled = self._like_first(self.names[piece.begin])
        engine = eager_engine(model, compiled, require_positive=self.require_positive)
        setup = Setup(
            engine, data_of(model, None), as_fixed(model, self.fixed), None, self.test_statistic
        )
        limit = find_limits(HypothesisTest(setup), self.level)
        names = ("observed", "expected", "status_code", "branches")
        return {name: np.asarray(getattr(limit, name)) for name in names}

    def _like_first(self, name: str) -> tuple[Model, bool]:
        """A model that shares the executables of the first; if it cannot, NumPy fits it."""
        try:
            return self._model(name, sizes=self.model.about.sizes), self.compiled
        except ModelError:  # it is larger
            return self._model(name), False


def _limit(arrays: Arrays, level: float) -> UpperLimit:
    return UpperLimit(
        observed=float(arrays["observed"]),
        expected=arrays["expected"],
        level=level,
        status_code=int(arrays["status_code"]),
        branches=int(arrays["branches"]),
    )
