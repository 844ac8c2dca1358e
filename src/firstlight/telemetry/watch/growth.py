"""Detects steady growth of memory, as opposed to warm-up and sawtooth patterns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median

#: A horizon is divided into so many windows, of so many points each.
_WINDOWS = 6
_POINTS = 5
#: A point is the minimum of so many samples: every 10 s, they span 15 minutes to 9 hours.
_HORIZONS = (3, 18, 108)
#: Smaller growth over a horizon is ignored.
_MIN_BYTES = 8 * 2**20
_MIN_RATIO = 0.01
#: Share of the growth in the second half of the horizon; it is smaller during warm-up.
_MIN_LATE_SHARE = 0.3

Point = tuple[float, float]  # seconds, bytes


@dataclass(frozen=True)
class Growth:
    bytes_per_second: float
    since: float  # start of the horizon that shows it, on the same clock


class GrowthWatch:
    """Samples of one quantity over several horizons, in bounded memory."""

    def __init__(self) -> None:
        self._horizons = [_Horizon(every) for every in _HORIZONS]

    def add(self, seconds: float, count: float) -> Growth | None:
        """Add a sample; returns the growth over the shortest horizon that shows any."""
        for horizon in self._horizons:
            horizon.add((seconds, count))
        return next((found for h in self._horizons if (found := h.growth()) is not None), None)


class _Horizon:
    def __init__(self, every: int) -> None:
        self._every = every
        self._pending: list[Point] = []
        self._points: deque[Point] = deque(maxlen=_WINDOWS * _POINTS)

    def add(self, point: Point) -> None:
        self._pending.append(point)
        if len(self._pending) == self._every:
            self._points.append((point[0], min(count for _, count in self._pending)))
            self._pending.clear()

    def growth(self) -> Growth | None:
        """The Theil-Sen slope of the windows' minima, if each exceeds the one before.

        The minimum of a window leaves out memory that is freed from time to time.
        """
        points = list(self._points)
        if len(points) < _WINDOWS * _POINTS:
            return None
        windows = [points[n : n + _POINTS] for n in range(0, len(points), _POINTS)]
        least = [min(window, key=lambda point: point[1]) for window in windows]
        first, last = least[0][1], least[-1][1]
        rises = all(a[1] < b[1] for a, b in pairwise(least))
        late = last - least[_WINDOWS // 2 - 1][1]
        if not rises or last - first < max(_MIN_BYTES, _MIN_RATIO * first):
            return None
        if late < _MIN_LATE_SHARE * (last - first):
            return None
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(least, 2)]
        return Growth(median(slopes), points[0][0])
