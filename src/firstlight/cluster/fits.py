"""Toys, scans and CLs on a cluster, with the same results as the functions of `histfactory`.

All take `on` ("ray", "ray://host:port"; None: this machine), `checkpoint` (a folder that keeps the
finished pieces), `resume` (continue such a folder) and `progress`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from firstlight.cluster.computing import Finished, Progress, computed
from firstlight.cluster.jobs import (
    BATCH_PER_PIECE,
    TOYS_PER_PIECE,
    CLsJob,
    ScanJob,
    ToyJob,
    ToyTestJob,
)
from firstlight.histfactory.array_types import DataSet, Parameters
from firstlight.histfactory.exclusion import CLs, plan_cls
from firstlight.histfactory.fitting import Fixed
from firstlight.histfactory.internal_order import data_vector
from firstlight.histfactory.lazy_jax import is_imported, jax
from firstlight.histfactory.model import Floats, Model
from firstlight.histfactory.scans import Scan, plan_scan
from firstlight.histfactory.toy_fits import ToyCLs, ToyFits, Toys, plan_toy_cls, plan_toys

Folder = str | Path | None
#: Bytes of the columns that are in memory together.
_MAX_BYTES = 128 << 20


@dataclass(frozen=True, eq=False)
class FittedToys:
    """Fits of many toys; the fitted parameters stay on disk while this is open."""

    names: tuple[str, ...]
    nll: Floats
    status_code: Floats
    edm: Floats
    branches: Floats
    _fits: ToyFits
    _finished: Finished

    @property
    def converged(self) -> Any:
        return self.status_code == 0

    @property
    def not_converged(self) -> int:
        return int(np.sum(~self.converged))

    def columns(self) -> Iterator[tuple[slice, Floats]]:
        """Fitted values of all toys, a few parameters at a time, as [toy, parameter]."""
        width = max(1, _MAX_BYTES // (8 * len(self.nll)))
        for begin in range(0, len(self.names), width):
            some = slice(begin, min(begin + width, len(self.names)))
            yield some, np.concatenate([a["values"][:, some] for _, a in self._finished.parts()])

    def values_of(self, name: str) -> Floats:
        """Fitted values of one parameter."""
        index = self.names.index(name)
        return np.concatenate([a["values"][:, index] for _, a in self._finished.parts()])

    def in_memory(self) -> Toys:
        """Everything as `histfactory.toys` returns it, with the data of every toy."""
        drawn = self._fits.source.draw(0, self._fits.n)
        return Toys(
            names=self.names,
            values=self._finished.column("values"),
            nll=self.nll,
            status_code=self.status_code,
            edm=self.edm,
            branches=self.branches,
            data=data_vector(self._fits.model, drawn),
        )


@contextmanager
def fitted_toys(
    model: Model,
    n: int,
    key: Any = 0,
    *,
    parameters: Parameters = None,
    mu: float | None = None,
    fixed: Fixed = None,
    on: str | None = None,
    checkpoint: Folder = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Iterator[FittedToys]:
    """Fit many toys; memory holds a few numbers per toy, and columns only while they are read."""
    fits = plan_toys(model, n, key, parameters=parameters, mu=mu, fixed=fixed)
    job = ToyJob(fits, _toys_per_piece(fits.compiled))
    with computed(job, on, checkpoint, resume, progress) as finished:
        names = ("nll", "status_code", "edm", "branches")
        columns: dict[str, list[Any]] = {name: [] for name in names}
        for _, arrays in finished.parts():
            for name in names:
                columns[name].append(arrays[name])
        whole = {name: np.concatenate(parts) for name, parts in columns.items()}
        yield FittedToys(model.parameter_names, **whole, _fits=fits, _finished=finished)


def toys(
    model: Model,
    n: int,
    key: Any = 0,
    *,
    parameters: Parameters = None,
    mu: float | None = None,
    fixed: Fixed = None,
    on: str | None = None,
    checkpoint: Folder = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Toys:
    """`histfactory.toys`, spread: equal bit for bit, whichever nodes compute them.

    `fitted_toys` needs less memory for very many toys.
    """
    with fitted_toys(
        model,
        n,
        key,
        parameters=parameters,
        mu=mu,
        fixed=fixed,
        on=on,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    ) as found:
        return found.in_memory()


def toy_cls(
    model: Model,
    mu: float,
    n: int,
    key: Any = 0,
    *,
    data: DataSet = None,
    fixed: Fixed = None,
    test_statistic: str = "qtilde",
    on: str | None = None,
    checkpoint: Folder = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> ToyCLs:
    """`histfactory.toy_cls`, spread."""
    test = plan_toy_cls(model, mu, n, key, data=data, fixed=fixed, test_statistic=test_statistic)
    job = ToyTestJob(test, _toys_per_piece(test.compiled))
    with computed(job, on, checkpoint, resume, progress) as finished:
        q, branches = finished.column("q"), finished.column("branches")
    return test.result(q[: test.n], q[test.n :], int(branches.max()))


def scan(
    model: Model,
    parameter: str | None = None,
    values: Sequence[float] | None = None,
    data: DataSet = None,
    fixed: Fixed = None,
    *,
    points: int = 41,
    width: float = 3.0,
    require_positive: bool = False,
    on: str | None = None,
    checkpoint: Folder = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Scan:
    """`histfactory.scan`, spread."""
    settings: dict[str, Any] = {"points": points, "width": width}
    settings["require_positive"] = require_positive
    fits = plan_scan(model, parameter, values, data, fixed, **settings)
    job = ScanJob(fits, _points_per_piece(on))
    with computed(job, on, checkpoint, resume, progress) as finished:
        names = ("nll", "status_code", "branches")
        return fits.result(*(finished.column(name) for name in names))


def cls(
    model: Model,
    mu: Sequence[float] | Floats,
    data: DataSet = None,
    fixed: Fixed = None,
    init: Parameters = None,
    test_statistic: str = "qtilde",
    *,
    require_positive: bool = False,
    on: str | None = None,
    checkpoint: Folder = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> CLs:
    """`histfactory.cls` for an array of signal strengths, spread."""
    given = (mu, data, fixed, init, test_statistic)
    grid = plan_cls(model, *given, require_positive=require_positive)
    job = CLsJob(grid, _points_per_piece(on))
    with computed(job, on, checkpoint, resume, progress) as finished:
        return CLs(*(finished.column(field.name) for field in fields(CLs)))


def _toys_per_piece(compiled: bool) -> int:
    """Whole batches on an accelerator, where the digits depend on the batch."""
    on_cpu = not (compiled and is_imported()) or jax.default_backend() == "cpu"
    return TOYS_PER_PIECE if on_cpu else BATCH_PER_PIECE


def _points_per_piece(on: str | None) -> int:
    """One on a cluster, so that all cores share the work; here, enough for several threads."""
    return 16 if on is None else 1
