"""Steps in a trend: where a series of medians, one per snapshot, changed its level and kept it.

The same change points as in the calls of a process, on logarithms, so that a step is a ratio. A
series of snapshots is short, so the penalty is smaller than there; and a step that nobody would
notice does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from firstlight.statistics.change_points import change_points
from firstlight.statistics.intervals import median

#: Levels closer than this are one level: the minimum effect of a gate.
MIN_STEP = 0.03


@dataclass(frozen=True)
class Step:
    """A change of level between two neighbouring values of a series."""

    index: int  # the first value of the new level
    before: float  # median of the old level
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def find_steps(values: Sequence[float], least: float = MIN_STEP) -> list[Step]:
    """Steps of a series in order of time; none in a series of less than ten values.

    A level has at least five values, so a step is seen five snapshots after it happened at the
    earliest, and a single odd snapshot is none. By simulation: with a penalty of 6 ln n, at most
    one series in twenty shows a step that is not there, also with heavy tails; with the 4 ln n of
    Schwarz's criterion it would be one in ten.
    """
    if any(not math.isfinite(v) or v <= 0 for v in values):
        raise ValueError("a trend needs positive, finite values")
    n = len(values)
    found = change_points(np.log(np.asarray(values, dtype=float)), penalty=6 * math.log(max(n, 2)))
    return _merged([float(v) for v in values], [0, *found, n], least)


def _merged(values: Sequence[float], bounds: Sequence[int], least: float) -> list[Step]:
    """Steps between levels; neighbours that differ by less than `least` become one."""
    segments = list(pairwise(bounds))
    while len(segments) > 1:
        levels = [median(values[start:end]) for start, end in segments]
        sizes = [abs(math.log(b / a)) for a, b in pairwise(levels)]
        smallest = min(range(len(sizes)), key=sizes.__getitem__)
        if sizes[smallest] >= math.log1p(least):
            return [Step(segments[i + 1][0], levels[i], levels[i + 1]) for i in range(len(sizes))]
        segments[smallest : smallest + 2] = [(segments[smallest][0], segments[smallest + 1][1])]
    return []
