"""Change points in mean and variance: PELT's optimum, in bounded time.

The cost of a segment is that of a normal model with its own mean and variance, `L ln(v + 1e-6)`
(ruptures' `CostNormal`); every additional segment must save the penalty. The optimum is found by
the usual recursion over the ends of segments, vectorised over blocks of ends:

- A start that cannot be optimal for any end of the block is skipped. Its sum of squares only grows
  with the end, so at an end x later its cost is at least that of the sum it has where the block
  begins. This bound is concave in x and so lies above its chord over the block. A start whose chord
  lies above the cost that another start reaches cannot win. On a flat series, where PELT prunes
  nothing, a handful of starts remain.
- A start that is beaten by the first end of the block is dropped for good (Killick et al. 2012,
  eq. 4). This is exact with a minimum segment length too: it applies from the next block on.

So the result equals that of the full search. A quick check beforehand proves for most series that
there is no change (`is_one_segment`). A series of more than `MAX_PLACES` values may only be cut at
that many evenly spaced places (ruptures' `jump`); costs still use all values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIN_SEGMENT = 5  # values, enough for a variance
MAX_PLACES = 1024
_BLOCK = 48  # ends; the bound of a start loses about 1 per end, and a penalty is about 100
#: Added to a variance, as in ruptures: equal clock readings have none, and ln 0 is infinite.
_FLOOR = 1e-6
#: Margin of all bounds, for rounding: sums of squares are differences of large sums.
_SLACK = 0.1
_CELL = 8  # places; the cost of segments of two cells or more is bounded by the cells they contain

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def change_points(values: Floats, penalty: float | None = None) -> list[int]:
    """The starts of new segments; each must save `penalty`, by default 15 ln n."""
    n = len(values)
    if n < 2 * MIN_SEGMENT:
        return []
    step = -(-n // MAX_PLACES)
    places = np.arange(n + 1)
    if step > 1:  # the last segment is no shorter than the others
        places = np.append(places[: n - max(step, MIN_SEGMENT) + 1 : step], n)
    search = _Search(values, places, -(-MIN_SEGMENT // step))
    penalty = 15 * float(np.log(n)) if penalty is None else penalty
    return [] if search.is_one_segment(penalty) else search.run(penalty)


class _Search:
    """The optimal last segment of every prefix of a series, cut at `places` only."""

    def __init__(self, values: Floats, places: Indices, min_places: int) -> None:
        scaled = (values - values.mean()) / (values.std() or 1.0)
        self.sums = np.concatenate(([0.0], np.cumsum(scaled)))[places]
        self.squares = np.concatenate(([0.0], np.cumsum(scaled**2)))[places]
        self.places = places.astype(float)
        self.min_places = min_places  # from the start of a segment to its end
        self.best = np.full(len(places), np.inf)
        self.previous = np.zeros(len(places), dtype=np.int64)

    def is_one_segment(self, penalty: float) -> bool:
        """Whether the optimum is provably a single segment; False also if unknown.

        The whole series costs about 0, not counting its penalty. If the first and the last segment
        of a division save less than half a penalty each, and those in between less than one, then m
        segments save less than the m - 1 penalties they add.
        """
        last, least = len(self.places) - 1, self.min_places
        whole = np.array([0, last])
        if last < 4 * _CELL or abs(self._costs(whole[:1], whole[1:])[0]) > _SLACK:
            return False
        inner = np.arange(least, last - least + 1)
        outer = (self._costs(whole[:1], inner), self._costs(inner, whole[1:]))
        if min(costs.min() for costs in outer) < _SLACK - penalty / 2:
            return False
        return self._min_cost() > _SLACK - penalty

    def _min_cost(self) -> float:
        """A lower bound of the cost of any segment; exact for short ones.

        A longer one has at least the sum of squares of the cells within it. For a given sum the
        cost is concave in the length, so its minimum is at the shortest or longest possible length.
        """
        last = len(self.places) - 1
        starts = np.arange(last - self.min_places + 1)[:, None]
        ends = np.minimum(starts + np.arange(self.min_places, 2 * _CELL), last)
        least = float(self._costs(starts, ends).min())
        cells = np.arange(0, last + 1, _CELL)
        first, final = (cells[chosen] for chosen in np.triu_indices(len(cells), 1))
        shortest, variance = self._spread(first, final)
        before, behind = np.maximum(first - _CELL + 1, 0), np.minimum(final + _CELL - 1, last)
        for length in (shortest, self.places[behind] - self.places[before]):
            bound = length * np.log(variance * shortest / length + _FLOOR)
            least = min(least, float(bound.min()))
        return least

    def run(self, penalty: float) -> list[int]:
        self.best[0] = -penalty
        starts = np.zeros(1, dtype=np.int64)
        for begin in range(self.min_places, len(self.places), _BLOCK):
            ends = np.arange(begin, min(begin + _BLOCK, len(self.places)))
            at_begin = self.best[starts] + self._costs(starts, ends[:1])
            self._settle(starts[self._may_win(starts, at_begin, ends)], ends, penalty)
            lasting = starts[at_begin <= self.best[begin] + _SLACK]
            new = np.arange(begin - self.min_places + 1, ends[-1] - self.min_places + 2)
            starts = np.concatenate((lasting, new))
        found, place = [], int(self.previous[-1])
        while place > 0:
            found.append(int(self.places[place]))
            place = int(self.previous[place])
        return found[::-1]

    def _spread(self, starts: Indices, ends: Indices) -> tuple[Floats, Floats]:
        """Length and variance of each segment; starts and ends broadcast."""
        length = self.places[ends] - self.places[starts]
        mean = self.sums[ends] - self.sums[starts]
        mean /= length
        variance: Floats = self.squares[ends] - self.squares[starts]
        variance /= length
        variance -= np.square(mean, out=mean)
        return length, np.maximum(variance, 0.0, out=variance)

    def _costs(self, starts: Indices, ends: Indices) -> Floats:
        """The cost of each segment; starts and ends broadcast."""
        length, costs = self._spread(starts, ends)
        costs += _FLOOR
        np.log(costs, out=costs)
        costs *= length
        return costs

    def _settle(self, starts: Indices, ends: Indices, penalty: float) -> None:
        """Set the best costs of a block of ends; segments may also start within the block."""
        column = np.arange(len(ends))
        totals = self.best[starts][:, None] + self._costs(starts[:, None], ends) + penalty
        rows = np.argmin(totals, axis=0)
        self.previous[ends], self.best[ends] = starts[rows], totals[rows, column]
        inner = np.arange(ends[0] - self.min_places + 1, ends[-1] - self.min_places + 1)
        if not len(inner):
            return
        with np.errstate(divide="ignore", invalid="ignore"):  # empty segments: set to inf below
            costs = self._costs(inner[:, None], ends) + penalty
        costs[ends < inner[:, None] + self.min_places] = np.inf
        while True:  # each pass allows one more change point within the block
            totals = self.best[inner][:, None] + costs
            rows = np.argmin(totals, axis=0)
            better = totals[rows, column] < self.best[ends]
            if not better.any():
                return
            self.best[ends[better]] = totals[rows, column][better]
            self.previous[ends[better]] = inner[rows[better]]

    def _may_win(self, starts: Indices, at_begin: Floats, ends: Indices) -> NDArray[np.bool_]:
        """Which starts may be optimal for an end of the block; the bound is the module's."""
        if len(starts) <= _BLOCK or len(ends) < 2:
            return np.ones(len(starts), dtype=bool)
        rivals = np.unique(self.previous[ends[0] - _BLOCK : ends[0]])
        reached = (self.best[rivals][:, None] + self._costs(rivals[:, None], ends)).min(axis=0)
        along = (self.places[ends] - self.places[ends[0]]) / np.ptp(self.places[ends])
        line = reached[0] + along * (reached[-1] - reached[0])
        above = float(np.max(reached - line)) + _SLACK
        first, final = (self.places[end] - self.places[starts] for end in (ends[0], ends[-1]))
        moved = (self.sums[ends[0]] - self.sums[starts]) ** 2 / first
        squares = np.maximum(self.squares[ends[0]] - self.squares[starts] - moved, 0.0)
        at_final = self.best[starts] + final * np.log(squares / final + _FLOOR)
        wins: NDArray[np.bool_] = at_begin <= reached[0] + above
        wins |= at_final <= reached[-1] + above
        return wins
