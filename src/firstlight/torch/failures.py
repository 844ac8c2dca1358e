"""Failures in a training step: fits that do not converge, and impossible templates."""

from __future__ import annotations

import sys
import warnings
from typing import NamedTuple

import torch

from firstlight.errors import FirstlightError
from firstlight.histfactory.newton import Status
from firstlight.losses.binning import LossError
from firstlight.torch import programs
from firstlight.torch.arguments import impossible_message

POLICIES = ("raise", "skip", "last_good")
Header = list[list[float]]  # one list per row of a result
_LIBRARIES = ("firstlight", "torch")


class FitError(FirstlightError, RuntimeError):
    """A fit inside a training step did not converge; the message names the step."""


class Failure(NamedTuple):
    """A step whose fits did not converge."""

    step: int
    message: str


def warn_at_users_line(message: str) -> None:
    """Warn about the innermost line that belongs neither to Firstlight nor to PyTorch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def require_possible(spec: programs.Statistic, rows: Header) -> None:
    """Raises a `LossError` that names the first impossible template."""
    for i, row in enumerate(rows):
        if row[programs.INVALID]:
            key = spec.keys[int(row[programs.INVALID]) - 1]
            where = f"row {i} of " if len(rows) > 1 else ""
            raise LossError(where + impossible_message(key))


def converged(rows: Header) -> bool:
    return not _failed(rows)


def _failed(rows: Header) -> list[int]:
    return [i for i, row in enumerate(rows) if row[programs.FREE] or row[programs.CONDITIONAL]]


def explanation(rows: Header) -> str:
    """Why the first of the failed fits found no minimum."""
    bad = _failed(rows)
    row = rows[bad[0]]
    which = "free" if row[programs.FREE] else "conditional"
    code = int(row[programs.FREE] or row[programs.CONDITIONAL])
    where = f" of row {bad[0]} (and {len(bad) - 1} more)" if len(rows) > 1 else ""
    return f"the {which} fit{where} found no minimum: {Status(code).message}"


def repaired(packed: torch.Tensor, rows: Header, last: torch.Tensor | None) -> torch.Tensor:
    """The result, with failed rows as in the `last` good one, or without one a zero gradient."""
    mended = packed.clone().reshape(len(rows), -1)
    for i in _failed(rows):
        if last is not None:
            mended[i] = last.reshape(len(rows), -1)[i]
        else:
            mended[i, programs.HEADER :] = 0.0
            # An infinite value times a zero gradient would be NaN.
            mended[i, programs.VALUE].nan_to_num_(0.0, 0.0, 0.0)
    return mended.reshape(packed.shape)
