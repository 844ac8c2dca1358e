"""Steps in a trend: lasting changes of level in a series of medians, one per snapshot.

Change points are found as for the calls of a process, but on logarithms, because a step is a ratio,
and with a smaller penalty, because the series is short. Steps too small to matter do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from firstlight.statistics.change_points import change_points
from firstlight.statistics.intervals import median

#: Levels closer than this count as one. Equals the minimum effect of a gate.
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


def find_steps(values: Sequence[float], min_step: float = MIN_STEP) -> list[Step]:
    """The steps of a series in time order; none in a series of fewer than ten values.

    A level has at least five values, so a step is found five snapshots later at the earliest, and a
    single odd snapshot is not a step. In simulations with a penalty of 6 ln n, at most one series
    in twenty has a false step, also with heavy tails; with the 4 ln n of Schwarz's criterion it is
    one in ten.
    """
    if any(not math.isfinite(v) or v <= 0 for v in values):
        raise ValueError("a trend needs positive, finite values")
    n = len(values)
    found = change_points(np.log(np.asarray(values, dtype=float)), penalty=6 * math.log(max(n, 2)))
    return _merged([float(v) for v in values], [0, *found, n], min_step)


def _merged(values: Sequence[float], bounds: Sequence[int], min_step: float) -> list[Step]:
    """Steps between levels; neighbouring levels that differ by less than `min_step` are merged."""
    segments = list(pairwise(bounds))
    while len(segments) > 1:
        levels = [median(values[start:end]) for start, end in segments]
        sizes = [abs(math.log(b / a)) for a, b in pairwise(levels)]
        smallest = min(range(len(sizes)), key=sizes.__getitem__)
        if sizes[smallest] >= math.log1p(min_step):
            return [Step(segments[i + 1][0], levels[i], levels[i + 1]) for i in range(len(sizes))]
        segments[smallest : smallest + 2] = [(segments[smallest][0], segments[smallest + 1][1])]
    return []
