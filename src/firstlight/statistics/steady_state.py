"""Does a process reach a steady state, and when? Change points instead of "drop the first N".

After Barrett et al., *Virtual Machine Warmup Blows Hot and Cold* (OOPSLA 2017): outliers against a
rolling window are set aside, change points in mean and variance are those that PELT would find
(Killick et al. 2012, penalty 15 ln n), and segments that hardly differ count as one level. Levels
are medians: a burst of slow calls is a disturbance, not a new state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_WINDOW = 100  # values on each side of the rolling window for outliers
_STRIDE = 10  # values that share a window
_SHORTEST = 5  # values in a segment: a variance needs a few
_LEAST_RELATIVE_CHANGE = 0.05  # levels closer than this are one level to a user
_SHORT_SHARE = 0.05  # of the calls: a disturbance shorter than this does not end a steady state

CLASSES = ("flat", "warmup", "slowdown", "no steady state", "too few calls", "inconsistent")


@dataclass(frozen=True)
class SteadyState:
    """The class of one process, and where its steady part begins (None without one)."""

    steady_class: str
    begins: int | None


def classify(seconds: Sequence[float]) -> SteadyState:
    """The class of a series of calls in order.

    The last quarter sets the level, and nine tenths of it must keep it. What comes before and is at
    the same level counts as steady too, and a short disturbance (under 5 % of the calls) does not
    end it. Under 20 calls nothing can be told: they are taken as they are, and the class says so.
    """
    values = np.asarray(seconds, dtype=float)
    if len(values) < 4 * _SHORTEST:
        return SteadyState("too few calls", 0)
    kept = np.flatnonzero(~outliers(values))
    series = values[kept]
    tail = 3 * len(series) // 4
    low, level, high = np.percentile(series[tail:], (25, 50, 75))
    tolerance = max(float(high - low), _LEAST_RELATIVE_CHANGE * float(level))
    bounds = [0, *change_points(series), len(series)]
    strange = [
        (start, end)
        for start, end in pairwise(bounds)
        if abs(float(np.median(series[start:end])) - level) > tolerance
    ]
    if sum(max(0, end - max(start, tail)) for start, end in strange) > 0.1 * (len(series) - tail):
        return SteadyState("no steady state", None)
    lasting = [(a, b) for a, b in strange if b - a >= _SHORT_SHARE * len(series) or a == 0]
    if not lasting:
        return SteadyState("flat", 0)
    begins = lasting[-1][1]
    slower = float(np.median(series[:begins])) < level
    return SteadyState("slowdown" if slower else "warmup", int(kept[begins]))


def outliers(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Values beyond the rolling median ± 3 (P90 - P10); set aside for change points only."""
    found = np.zeros(len(values), dtype=bool)
    for start in range(0, len(values), _STRIDE):
        block = slice(start, start + _STRIDE)
        window = values[max(0, start - _WINDOW) : start + _STRIDE + _WINDOW]
        low, middle, high = np.percentile(window, (10, 50, 90))
        found[block] = np.abs(values[block] - middle) > 3 * (high - low)
    return found


def change_points(values: NDArray[np.float64], penalty: float | None = None) -> list[int]:
    """Starts of new segments, minimising the cost of a normal model with its own mean and variance.

    The minimum that PELT computes, without its pruning: all candidates of a step are evaluated at
    once on cumulative sums, which for a thousand calls takes milliseconds and is exact also with a
    shortest segment, where pruning is not. The cost is that of ruptures' `CostNormal`.
    """
    n = len(values)
    if n < 2 * _SHORTEST:
        return []
    scaled = (values - values.mean()) / (values.std() or 1.0)
    sums = np.concatenate(([0.0], np.cumsum(scaled)))
    squares = np.concatenate(([0.0], np.cumsum(scaled**2)))
    penalty = 15 * np.log(n) if penalty is None else penalty
    best = np.full(n + 1, np.inf)
    best[0] = -penalty
    previous = np.zeros(n + 1, dtype=np.int64)
    for end in range(_SHORTEST, n + 1):
        last = end - _SHORTEST + 1
        length = end - np.arange(last)
        mean = (sums[end] - sums[:last]) / length
        variance = (squares[end] - squares[:last]) / length - mean**2
        # A floor as ruptures has it: equal clock readings have no variance, and ln 0 is no cost.
        cost = length * np.log(np.maximum(variance, 0.0) + 1e-6)
        totals = best[:last] + cost + penalty
        previous[end] = np.argmin(totals)
        best[end] = totals[previous[end]]
    found: list[int] = []
    end = int(previous[n])
    while end > 0:
        found.append(end)
        end = int(previous[end])
    return found[::-1]
