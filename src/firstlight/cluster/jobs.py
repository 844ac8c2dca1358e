"""Fits in pieces: what there is to compute, a piece of it anywhere, and the whole from the pieces.

Every job says in `compiled` whether XLA runs its fits: decided once, where it was planned, so that
the digits do not depend on who computes a piece, nor on how many pieces there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from firstlight.cluster.checkpoint import Arrays
from firstlight.histfactory.exclusion import CLs, CLsGrid
from firstlight.histfactory.internal_order import prepared
from firstlight.histfactory.model import Model
from firstlight.histfactory.scans import ScanFits
from firstlight.histfactory.toy_fits import ToyFits, ToyTest

#: Toys in a piece: seconds of work, so that little is lost with a node and little is overhead; an
#: accelerator fits so many more in that time, if it has them all at once.
TOYS_PER_PIECE = 256
BATCH_PER_PIECE = 1 << 16


@dataclass(frozen=True)
class Piece:
    """Consecutive items of one part of a job."""

    number: int
    part: int
    begin: int
    end: int


class Job(Protocol):
    """Work that can be computed in pieces; it travels pickled."""

    @property
    def model(self) -> Model:
        """The model, or one that all of its models share the executables of."""
        ...

    @property
    def compiled(self) -> bool: ...

    def identity(self) -> Mapping[str, str]:
        """What the results depend on, by named parts."""
        ...

    def pieces(self) -> list[Piece]: ...

    def compute(self, piece: Piece) -> Arrays: ...


def cut(sizes: list[int], length: int) -> list[Piece]:
    """Pieces of at most this length, none across two parts."""
    found: list[Piece] = []
    for part, size in enumerate(sizes):
        for begin in range(0, size, length):
            found.append(Piece(len(found), part, begin, min(begin + length, size)))
    return found


@dataclass(frozen=True, eq=False)
class ToyJob:
    fits: ToyFits
    length: int = TOYS_PER_PIECE

    @property
    def model(self) -> Model:
        return self.fits.model

    @property
    def compiled(self) -> bool:
        return self.fits.compiled

    def identity(self) -> Mapping[str, str]:
        source = self.fits.source
        return {
            "work": "toys",
            "model": digest(self.model),
            "seed": str(list(source.entropy)),
            "toys": str(self.fits.n),
            "drawn at": _digest_of([source.theta, source.main, source.aux]),
            "fixed": repr(sorted(self.fits.fixed.items())),
            **_circumstances(self),
        }

    def pieces(self) -> list[Piece]:
        return cut([self.fits.n], self.length)

    def compute(self, piece: Piece) -> Arrays:
        found = self.fits.fit(piece.begin, piece.end)
        names = ("values", "nll", "status_code", "edm", "branches")
        return {name: getattr(found, name) for name in names}


@dataclass(frozen=True, eq=False)
class ToyTestJob:
    test: ToyTest
    length: int = TOYS_PER_PIECE

    @property
    def model(self) -> Model:
        return self.test.model

    @property
    def compiled(self) -> bool:
        return self.test.compiled

    def identity(self) -> Mapping[str, str]:
        first, second = self.test.sources
        return {
            "work": f"toys for CLs ({self.test.test_statistic})",
            "model": digest(self.model),
            "seed": str(list(first.entropy)),
            "toys": str(self.test.n),
            "signal strength": repr(self.test.mu),
            "drawn at": _digest_of([first.theta, first.main, second.theta, second.main]),
            "fixed": repr(sorted(self.test.fixed.items())),
            **_circumstances(self),
        }

    def pieces(self) -> list[Piece]:
        return cut([self.test.n, self.test.n], self.length)

    def compute(self, piece: Piece) -> Arrays:
        q, branches = self.test.statistics(piece.part, piece.begin, piece.end)
        return {"q": q, "branches": branches}


@dataclass(frozen=True, eq=False)
class ScanJob:
    fits: ScanFits
    length: int

    @property
    def model(self) -> Model:
        return self.fits.model

    @property
    def compiled(self) -> bool:
        return self.fits.compiled

    def identity(self) -> Mapping[str, str]:
        best = self.fits.best.values
        return {
            "work": f"scan of {self.fits.parameter}",
            "model": digest(self.model),
            "points": _digest_of([self.fits.values, best]),
            "fixed": repr(sorted(self.fits.fixed.items())),
            **_circumstances(self),
        }

    def pieces(self) -> list[Piece]:
        return cut([len(self.fits.values)], self.length)

    def compute(self, piece: Piece) -> Arrays:
        nll, status, branches = self.fits.fit(piece.begin, piece.end)
        return {"nll": nll, "status_code": status, "branches": branches}


@dataclass(frozen=True, eq=False)
class CLsJob:
    grid: CLsGrid
    length: int

    @property
    def model(self) -> Model:
        return self.grid.model

    @property
    def compiled(self) -> bool:
        return self.grid.compiled

    def identity(self) -> Mapping[str, str]:
        return {
            "work": f"CLs ({self.grid.test_statistic})",
            "model": digest(self.model),
            "signal strengths": _digest_of([self.grid.mu]),
            "data": "observed" if self.grid.data is None else _digest_of([self.grid.data]),
            "fixed": repr(sorted(self.grid.fixed.items())),
            **_circumstances(self),
        }

    def pieces(self) -> list[Piece]:
        return cut([len(self.grid.mu)], self.length)

    def compute(self, piece: Piece) -> Arrays:
        found = self.grid.at(piece.begin, piece.end)
        return {f.name: np.asarray(getattr(found, f.name)) for f in fields(CLs)}


def digest(model: Model) -> str:
    """A model in a few characters: everything that its likelihood and its fits depend on."""
    ready = prepared(model)
    arrays = [getattr(ready, f.name) for f in fields(ready) if f.name != "codes"]
    settings = [model.init, model.lower, model.upper, model.fixed]
    observed = [] if model.observed is None else [model.observed]
    text = repr((ready.codes, model.parameter_names, model.poi))
    return _digest_of([*arrays, *settings, *observed], text)


def _digest_of(arrays: list[Any], text: str = "") -> str:
    known = hashlib.sha256(text.encode())
    for array in arrays:
        plain = np.ascontiguousarray(array)
        known.update(f"{plain.dtype}{plain.shape}".encode() + plain.tobytes())
    return known.hexdigest()[:16]


def _circumstances(job: Any) -> dict[str, str]:
    from firstlight import __version__

    engine = "XLA" if job.compiled else "NumPy"
    return {"per piece": str(job.length), "engine": engine, "firstlight": __version__}
