"""Fits in pieces: what there is to compute, a piece of it anywhere, and the whole from the pieces.

Every job says in `compiled` whether XLA runs its fits: decided once, where it was planned, so that
the digits do not depend on who computes a piece, nor on how many pieces there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar

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


class Planned(Protocol):
    """Fits that were planned as one, and can be computed in parts."""

    @property
    def model(self) -> Model: ...

    @property
    def compiled(self) -> bool: ...

    @property
    def fixed(self) -> Mapping[str, Any]: ...


W = TypeVar("W", bound=Planned)


@dataclass(frozen=True, eq=False)
class _FitJob(Generic[W]):
    """What all jobs of fits share; length: of a piece, at most."""

    fits: W
    length: int = TOYS_PER_PIECE

    @property
    def model(self) -> Model:
        return self.fits.model

    @property
    def compiled(self) -> bool:
        return self.fits.compiled

    def identity(self) -> Mapping[str, str]:
        from firstlight import __version__

        work, parts = self._about()
        return {
            "work": work,
            "model": digest(self.model),
            **parts,
            "fixed": repr(sorted(self.fits.fixed.items())),
            "per piece": str(self.length),
            "engine": "XLA" if self.compiled else "NumPy",
            "firstlight": __version__,
        }

    def _about(self) -> tuple[str, dict[str, str]]:
        """What the work is, and what its results depend on beside what all jobs have."""
        raise NotImplementedError


class ToyJob(_FitJob[ToyFits]):
    def _about(self) -> tuple[str, dict[str, str]]:
        source = self.fits.source
        return "toys", {
            "seed": str(list(source.entropy)),
            "toys": str(self.fits.n),
            "drawn at": _digest_of([source.theta, source.main, source.aux]),
        }

    def pieces(self) -> list[Piece]:
        return cut([self.fits.n], self.length)

    def compute(self, piece: Piece) -> Arrays:
        found = self.fits.fit(piece.begin, piece.end)
        names = ("values", "nll", "status_code", "edm", "branches")
        return {name: getattr(found, name) for name in names}


class ToyTestJob(_FitJob[ToyTest]):
    def _about(self) -> tuple[str, dict[str, str]]:
        first, second = self.fits.sources
        return f"toys for CLs ({self.fits.test_statistic})", {
            "seed": str(list(first.entropy)),
            "toys": str(self.fits.n),
            "signal strength": repr(self.fits.mu),
            "drawn at": _digest_of([first.theta, first.main, second.theta, second.main]),
        }

    def pieces(self) -> list[Piece]:
        return cut([self.fits.n, self.fits.n], self.length)

    def compute(self, piece: Piece) -> Arrays:
        q, branches = self.fits.statistics(piece.part, piece.begin, piece.end)
        return {"q": q, "branches": branches}


class ScanJob(_FitJob[ScanFits]):
    def _about(self) -> tuple[str, dict[str, str]]:
        points = _digest_of([self.fits.values, self.fits.best.values])
        return f"scan of {self.fits.parameter}", {"points": points}

    def pieces(self) -> list[Piece]:
        return cut([len(self.fits.values)], self.length)

    def compute(self, piece: Piece) -> Arrays:
        nll, status, branches = self.fits.fit(piece.begin, piece.end)
        return {"nll": nll, "status_code": status, "branches": branches}


class CLsJob(_FitJob[CLsGrid]):
    def _about(self) -> tuple[str, dict[str, str]]:
        data = self.fits.data
        return f"CLs ({self.fits.test_statistic})", {
            "signal strengths": _digest_of([self.fits.mu]),
            "data": "observed" if data is None else _digest_of([data]),
        }

    def pieces(self) -> list[Piece]:
        return cut([len(self.fits.mu)], self.length)

    def compute(self, piece: Piece) -> Arrays:
        found = self.fits.at(piece.begin, piece.end)
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
