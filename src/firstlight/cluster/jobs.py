"""Jobs of many fits, cut into pieces that any process can compute.

`compiled` says whether XLA runs the fits. It is decided once, where the job is planned, so that the
digits depend neither on the node that computes a piece nor on the number of pieces.
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

#: Toys per piece: seconds of work, so that a lost node costs little and overhead is small. An
#: accelerator fits far more in that time, given in one batch.
TOYS_PER_PIECE = 256
BATCH_PER_PIECE = 1 << 16


@dataclass(frozen=True)
class Piece:
    """Consecutive items of one part of a job."""

    number: int
    part: int
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


class Job(Protocol):
    """Work that can be computed in pieces; it is sent pickled."""

    @property
    def model(self) -> Model:
        """The model; where there are several, one whose executables fit them all."""
        ...

    @property
    def compiled(self) -> bool: ...

    def identity(self) -> Mapping[str, str]:
        """What the results depend on, by name."""
        ...

    def pieces(self) -> list[Piece]: ...

    def compute(self, piece: Piece) -> Arrays: ...


def cut(sizes: list[int], length: int) -> list[Piece]:
    """Pieces of at most this length; none spans two parts."""
    found: list[Piece] = []
    for part, size in enumerate(sizes):
        for begin in range(0, size, length):
            found.append(Piece(len(found), part, begin, min(begin + length, size)))
    return found


W = TypeVar("W", ToyFits, ToyTest, ScanFits, CLsGrid)


@dataclass(frozen=True, eq=False)
class _FitJob(Generic[W]):
    """What all jobs of fits share; length: at most so many items per piece."""

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
        """The kind of work, and what its results depend on besides what all jobs share."""
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
        work = f"scan of {self.fits.parameter}{positive(self.fits.require_positive)}"
        return work, {"points": points}

    def pieces(self) -> list[Piece]:
        return cut([len(self.fits.values)], self.length)

    def compute(self, piece: Piece) -> Arrays:
        nll, status, branches = self.fits.fit(piece.begin, piece.end)
        return {"nll": nll, "status_code": status, "branches": branches}


class CLsJob(_FitJob[CLsGrid]):
    def _about(self) -> tuple[str, dict[str, str]]:
        data = self.fits.data
        return f"CLs ({self.fits.test_statistic}){positive(self.fits.require_positive)}", {
            "signal strengths": _digest_of([self.fits.mu]),
            "data": "observed" if data is None else _digest_of([data]),
        }

    def pieces(self) -> list[Piece]:
        return cut([len(self.fits.mu)], self.length)

    def compute(self, piece: Piece) -> Arrays:
        found = self.fits.at(piece.begin, piece.end)
        return {f.name: np.asarray(getattr(found, f.name)) for f in fields(CLs)}


def positive(required: bool) -> str:
    """What the option `require_positive` adds to the name of a kind of work."""
    return ", all samples positive" if required else ""


def digest(model: Model) -> str:
    """A short digest of everything that a model's likelihood and fits depend on."""
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
