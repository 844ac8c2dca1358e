"""Change points in mean and variance: the minimum that PELT computes, in bounded time.

The cost of a segment is that of a normal model with its own mean and variance, `L ln(v + 1e-6)`,
which is ruptures' `CostNormal`; a further segment must save the penalty. The optimum is found by
the usual recursion over the ends of segments, here for a block of ends at once:

- A start that cannot win any end of the block is left out. Its sum of squares only grows with the
  end, so at an end x later its cost is at least that of the sum which it has at the block's begin.
  This is concave in x, so it lies above the line between its values at both ends of the block; and
  a start whose line lies above what another start reaches has lost. On a flat series, where PELT
  prunes nothing, this leaves a handful.
- A start that the block's own begin beats is left out for good (Killick et al. 2012, eq. 4). With a
  shortest segment this is exact too, because it counts only from the next block on.

So the result is that of the full search. Before it, one look proves most series to have no change
at all (`_is_one_segment`). A series of more than `MAX_PLACES` values is cut at so
many places only, evenly spread (ruptures' `jump`); the costs are still those of all its values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHORTEST = 5  # values in a segment: a variance needs a few
MAX_PLACES = 1024
_BLOCK = 48  # ends at once; a start's bound loses about 1 with each, and a penalty is about 100
#: Equal clock readings have no variance, and ln 0 is no cost: a floor as ruptures has it.
_FLOOR = 1e-6
#: Sums of squares are differences of large sums: a bound must not be sharper than they are.
_SLACK = 0.1
_CELL = 8  # places: segments of two cells or more are bounded by the cells that they contain

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def change_points(values: Floats, penalty: float | None = None) -> list[int]:
    """Starts of new segments; a further one must save `penalty`, 15 ln n unless given."""
    n = len(values)
    if n < 2 * SHORTEST:
        return []
    step = -(-n // MAX_PLACES)
    places = np.arange(n + 1)
    if step > 1:  # the last segment is no shorter than the others
        places = np.append(places[: n - max(step, SHORTEST) + 1 : step], n)
    search = _Search(values, places, -(-SHORTEST // step))
    penalty = 15 * float(np.log(n)) if penalty is None else penalty
    return [] if search.is_one_segment(penalty) else search.run(penalty)


class _Search:
    """Optimal last segments of ever longer beginnings of a series, cut at `places` only."""

    def __init__(self, values: Floats, places: Indices, least: int) -> None:
        scaled = (values - values.mean()) / (values.std() or 1.0)
        self.sums = np.concatenate(([0.0], np.cumsum(scaled)))[places]
        self.squares = np.concatenate(([0.0], np.cumsum(scaled**2)))[places]
        self.places = places.astype(float)
        self.least = least  # places from the start of a segment to its end
        self.best = np.full(len(places), np.inf)
        self.previous = np.zeros(len(places), dtype=np.int64)

    def is_one_segment(self, penalty: float) -> bool:
        """Whether every division certainly costs more than the whole; False also if unknown.

        The whole costs about 0, its penalty aside. If the first and the last segment of a division
        save less than half a penalty each, and one in between less than a whole one, then m
        segments save less than the m - 1 penalties that they add.
        """
        last, least = len(self.places) - 1, self.least
        whole = np.array([0, last])
        if last < 4 * _CELL or abs(self._costs(whole[:1], whole[1:])[0]) > _SLACK:
            return False
        inner = np.arange(least, last - least + 1)
        outer = (self._costs(whole[:1], inner), self._costs(inner, whole[1:]))
        if min(costs.min() for costs in outer) < _SLACK - penalty / 2:
            return False
        return self._least_cost() > _SLACK - penalty

    def _least_cost(self) -> float:
        """A cost that no segment is below: of the short ones exactly, of the others a bound.

        A longer one has at least the sum of squares of the cells within it. For a given sum a cost
        is concave in the length, so it is least for the shortest or the longest that it may be.
        """
        last = len(self.places) - 1
        starts = np.arange(last - self.least + 1)[:, None]
        ends = np.minimum(starts + np.arange(self.least, 2 * _CELL), last)
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
        for begin in range(self.least, len(self.places), _BLOCK):
            ends = np.arange(begin, min(begin + _BLOCK, len(self.places)))
            at_begin = self.best[starts] + self._costs(starts, ends[:1])
            self._settle(starts[self._may_win(starts, at_begin, ends)], ends, penalty)
            lasting = starts[at_begin <= self.best[begin] + _SLACK]
            fresh = np.arange(begin - self.least + 1, ends[-1] - self.least + 2)
            starts = np.concatenate((lasting, fresh))
        found, place = [], int(self.previous[-1])
        while place > 0:
            found.append(int(self.places[place]))
            place = int(self.previous[place])
        return found[::-1]

    def _spread(self, starts: Indices, ends: Indices) -> tuple[Floats, Floats]:
        """Length and variance of each segment; the places broadcast."""
        length = self.places[ends] - self.places[starts]
        mean = self.sums[ends] - self.sums[starts]
        mean /= length
        variance: Floats = self.squares[ends] - self.squares[starts]
        variance /= length
        variance -= np.square(mean, out=mean)
        return length, np.maximum(variance, 0.0, out=variance)

    def _costs(self, starts: Indices, ends: Indices) -> Floats:
        """The cost of each segment: a row for each start, if they are a column."""
        length, costs = self._spread(starts, ends)
        costs += _FLOOR
        np.log(costs, out=costs)
        costs *= length
        return costs

    def _settle(self, starts: Indices, ends: Indices, penalty: float) -> None:
        """Best costs of a block of ends, of which some may themselves start a segment."""
        column = np.arange(len(ends))
        totals = self.best[starts][:, None] + self._costs(starts[:, None], ends) + penalty
        rows = np.argmin(totals, axis=0)
        self.previous[ends], self.best[ends] = starts[rows], totals[rows, column]
        inner = np.arange(ends[0] - self.least + 1, ends[-1] - self.least + 1)
        if not len(inner):
            return
        with np.errstate(divide="ignore", invalid="ignore"):  # no segment: infinite below
            costs = self._costs(inner[:, None], ends) + penalty
        costs[ends < inner[:, None] + self.least] = np.inf
        while True:  # each pass lets one more change within the block count
            totals = self.best[inner][:, None] + costs
            rows = np.argmin(totals, axis=0)
            better = totals[rows, column] < self.best[ends]
            if not better.any():
                return
            self.best[ends[better]] = totals[rows, column][better]
            self.previous[ends[better]] = inner[rows[better]]

    def _may_win(self, starts: Indices, at_begin: Floats, ends: Indices) -> NDArray[np.bool_]:
        """Which starts may win an end of the block, by the bound that the module describes."""
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
