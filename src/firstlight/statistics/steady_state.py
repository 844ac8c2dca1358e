"""Whether and when a process reaches a steady state: change points, not "drop the first N".

After Barrett et al., *Virtual Machine Warmup Blows Hot and Cold* (OOPSLA 2017): outliers against a
rolling window are set aside, change points in mean and variance have a penalty of 15 ln n, and
segments that hardly differ count as one level. Levels are medians: a burst of slow calls is a
disturbance, not a new state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from firstlight.statistics.change_points import MIN_SEGMENT, change_points
from firstlight.statistics.intervals import median

#: The version of summaries: incremented when the statistics, or words of a protocol, give another
#: summary of the same samples. Published summaries are recomputed with the method they were made
#: with. History: 1; 2, a step in the last quarter is not noise; 3, a step at the end is not made of
#: outliers.
METHOD = 3

_WINDOW = 100  # values on each side in the rolling window for outliers
_STRIDE = 10  # values that share a window
_CHUNK = 1000  # windows per pass, to bound memory
_MIN_RELATIVE_CHANGE = 0.05  # levels closer than this count as one
_SHORT_SHARE = 0.05  # of the calls: a shorter disturbance does not end a steady state
_DENSE_SHARE = 1 / 3  # more outliers than that, up to the last call, are a new level

#: If levels of processes differ by more than this factor, no single number represents them.
_MAX_SPREAD = 3.0

CLASSES = ("flat", "warmup", "slowdown", "no steady state", "too few calls", "inconsistent")


@dataclass(frozen=True)
class SteadyState:
    """The class of one process, and the index at which its steady part begins (None: nowhere)."""

    steady_class: str
    begins: int | None


def classify(seconds: Sequence[float], method: int = METHOD) -> SteadyState:
    """The class of a series of calls in order.

    The level is the median of the last quarter, and nine tenths of that quarter must be at it. The
    steady part begins where the calls reach this level for good; a short disturbance (under 5 % of
    the calls) does not count. A series of fewer than 20 calls is not classified, and used whole.
    `method`: the one that published summaries were made with.
    """
    values = np.asarray(seconds, dtype=float)
    if len(values) < 4 * MIN_SEGMENT:
        return SteadyState("too few calls", 0)
    set_aside = outliers(values)
    if method > 2:
        set_aside[_late_level(set_aside) :] = False
    kept = np.flatnonzero(~set_aside)
    series = values[kept]
    tail = 3 * len(series) // 4
    segments = list(pairwise([0, *change_points(series), len(series)]))
    medians = [float(np.median(series[start:end])) for start, end in segments]
    _, level, _ = _quartiles(series[tail:])
    # Noise is the difference of calls from the median of their segment. Method 1 used the calls
    # themselves, so that a step in the last quarter counted as noise, and the series as flat.
    own = np.repeat(medians, np.diff(segments).ravel()) if method > 1 else 0.0
    low, _, high = _quartiles((series - own)[tail:])
    tolerance = max(high - low, _MIN_RELATIVE_CHANGE * level)
    elsewhere = [
        segment
        for segment, middle in zip(segments, medians, strict=True)
        if abs(middle - level) > tolerance
    ]
    late = sum(max(0, end - max(start, tail)) for start, end in elsewhere)
    if late > 0.1 * (len(series) - tail):
        return SteadyState("no steady state", None)
    lasting = [(a, b) for a, b in elsewhere if b - a >= _SHORT_SHARE * len(series) or a == 0]
    if not lasting:
        return SteadyState("flat", 0)
    begins = lasting[-1][1]
    slower = float(np.median(series[:begins])) < level
    return SteadyState("slowdown" if slower else "warmup", int(kept[begins]))


def _late_level(is_outlier: NDArray[np.bool_]) -> int:
    """The start of the longest end with more than a third of outliers; the length if too short.

    A level that began recently is less than a tenth of the rolling window, so its calls look like
    outliers. Spikes are not that dense.
    """
    shares = np.cumsum(is_outlier[::-1]) / np.arange(1, len(is_outlier) + 1)
    length = int(np.max(np.flatnonzero(shares > _DENSE_SHARE) + 1, initial=0))
    return len(is_outlier) - (length if length >= MIN_SEGMENT else 0)


def _quartiles(values: NDArray[np.float64]) -> tuple[float, float, float]:
    ordered, size = np.sort(values)[None], np.array([len(values)])
    low, middle, high = (float(_quantile(ordered, size, q)[0, 0]) for q in (0.25, 0.5, 0.75))
    return low, middle, high


def level(calls: Sequence[float], state: SteadyState) -> float:
    """The median seconds per call of the steady part, or without one of the last quarter."""
    begins = state.begins if state.begins is not None else 3 * len(calls) // 4
    return median(calls[begins:])


def spread(levels: Sequence[float]) -> float | None:
    """The ratio of the slowest to the fastest process, if no median represents them; else None.

    That is the case if the middle half spans more than a factor of three, as with two groups of
    processes of different speed. A single odd process does not affect a median.
    """
    ordered = sorted(levels)
    quarter = len(ordered) // 4
    if ordered[-1 - quarter] <= _MAX_SPREAD * ordered[quarter]:
        return None
    return ordered[-1] / ordered[0]


def outliers(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Values beyond the rolling median ± 3 (P90 - P10); ignored for change points only.

    Ten values share a window, which extends a hundred values beyond them on each side.
    """
    n = len(values)
    begins = np.arange(0, n, _STRIDE)
    sizes = np.minimum(begins + _STRIDE + _WINDOW, n) - np.maximum(begins - _WINDOW, 0)
    # Padding sorts to the end of a window, behind the values that its quantiles are taken of.
    padded = np.full(len(begins) * _STRIDE + 2 * _WINDOW, np.inf)
    padded[_WINDOW : _WINDOW + n] = values
    windows = sliding_window_view(padded, _STRIDE + 2 * _WINDOW)[::_STRIDE]
    found = np.empty((len(begins), _STRIDE), dtype=bool)
    for first in range(0, len(begins), _CHUNK):
        some = slice(first, first + _CHUNK)
        ordered = np.sort(windows[some], axis=1)
        low, middle, high = (_quantile(ordered, sizes[some], q) for q in (0.1, 0.5, 0.9))
        blocks = windows[some, _WINDOW : _WINDOW + _STRIDE]
        found[some] = np.abs(blocks - middle) > 3 * (high - low)
    return found.ravel()[:n]


def _quantile(
    ordered: NDArray[np.float64], sizes: NDArray[np.int64], share: float
) -> NDArray[np.float64]:
    """The quantile of the first `sizes` values of each row, as a column, interpolated linearly."""
    place = share * (sizes - 1)
    below = place.astype(np.int64)
    rows, above = np.arange(len(sizes)), np.minimum(below + 1, sizes - 1)
    one, other = ordered[rows, below], ordered[rows, above]
    values: NDArray[np.float64] = one + (place - below) * (other - one)
    return values[:, None]
