"""The definition of soft histograms in every framework: edges, bandwidth, counted events.

Every event spreads its weight over the bins with a kernel of width `bandwidth` around its score:
the weight in a bin is the integral of the kernel over it. The outermost bins extend to infinity, so
that a counted event loses no weight. `overflow` selects the events that count:

    "drop"   events between the first and the last edge, as in a plain histogram
    "clip"   all events; those outside the edges count in the outermost bins
    "leak"   all events, but the outermost bins end at their edges: the part of a kernel outside
             them is lost, so that events leave the histogram smoothly

A NaN score is an error under each of them: an event that vanished from a training would not be
noticed. Where scores cannot be inspected, in a compiled program or on a GPU, all bins are NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from firstlight.errors import FirstlightError

#: An array or a tensor.
Shaped: TypeAlias = Any
KINDS = ("kde", "sigmoid")
OVERFLOW = ("drop", "clip", "leak")


class LossError(FirstlightError, ValueError):
    """An unusable argument; the message names it and says what to do."""


def checked_edges(edges: object) -> NDArray[np.float64]:
    """Edges as float64: at least two, increasing; only the outermost ones may be infinite."""
    try:
        found = np.asarray(edges, np.float64)
    except (TypeError, ValueError):
        raise LossError("edges must be numbers.") from None
    if found.ndim != 1 or len(found) < 2:
        raise LossError(f"edges have shape {found.shape}; give a list of at least two numbers.")
    wrong = np.flatnonzero(~(np.diff(found) > 0))
    if len(wrong):
        i = int(wrong[0])
        raise LossError(f"edges must increase; edges[{i}] = {found[i]:g}, then {found[i + 1]:g}.")
    if len(found) == 2 and not np.isfinite(found).all():
        raise LossError("edges: a single bin needs two finite edges.")
    return found


def checked_bandwidth(bandwidth: float | str, edges: NDArray[np.float64]) -> float:
    """The width of the kernel; "auto" is half the mean bin width."""
    finite = edges[np.isfinite(edges)]
    if isinstance(bandwidth, str) and bandwidth == "auto":
        if len(finite) < 2:
            raise LossError('bandwidth="auto" needs a bin with two finite edges. Give a number.')
        return float(0.5 * np.diff(finite).mean())
    try:
        value = math.nan if isinstance(bandwidth, str) else float(bandwidth)
    except (TypeError, ValueError):
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise LossError(f'bandwidth is {bandwidth!r}; give a number above zero, or "auto".')
    if value < 1e-13 * np.abs(finite).max(initial=0.0):
        raise LossError(
            f"bandwidth is {value:g}, too narrow for float64 to resolve at these edges. Use a "
            "plain histogram."
        )
    return value


def checked_choice(name: str, value: object, among: Sequence[str]) -> str:
    """`value` if it is one of the allowed ones, else a `LossError`."""
    if value not in among:
        raise LossError(f"{name} is {value!r}, not one of {', '.join(map(repr, among))}.")
    return str(value)


def checked_scores(scores: Shaped, weights: Shaped | None, may_be_empty: bool = False) -> None:
    """Checks for one score per event and as many weights, of any real type."""
    shape = tuple(scores.shape)
    if len(shape) != 1:
        raise LossError(
            f"scores have shape {shape}; give one score per event "
            "(for a network's output column: scores[:, 0])."
        )
    if shape[0] == 0 and not may_be_empty:
        raise LossError("scores are empty: a histogram of no events has no gradient.")
    _require_real("scores", scores)
    if weights is not None:
        if tuple(weights.shape) != shape:
            raise LossError(f"weights have shape {tuple(weights.shape)}, scores {shape}.")
        _require_real("weights", weights)


def _require_real(name: str, values: Shaped) -> None:
    if str(values.dtype).removeprefix("torch.").startswith("complex"):
        raise LossError(f"{name} are complex; they must be real.")


def open_ends(edges: object, overflow: str) -> tuple[bool, bool]:
    """Whether the first and the last bin extend to infinity."""
    if overflow != "leak":
        return True, True
    if not isinstance(edges, np.ndarray):  # traced, so finite
        return False, False
    return bool(np.isinf(edges[0])), bool(np.isinf(edges[-1]))


def no_score_inside(first: float, last: float) -> LossError:
    """The error for a histogram that would be empty."""
    return LossError(
        f"scores: all lie outside the edges, {first:g} to {last:g}. "
        'Widen the edges, or count them in the outermost bins with overflow="clip".'
    )


def nan_scores(which: str) -> LossError:
    """The error for scores that are in no bin; which: how many, or where."""
    return LossError(
        f"scores: {which} are NaN, so the network or its input has failed. Lower the learning rate "
        "or look for NaN in the input; to leave events out, remove them before the histogram."
    )
