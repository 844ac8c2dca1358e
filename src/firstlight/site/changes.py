"""The steps of all trends, newest first, and summaries over all cases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firstlight.compare.runs import DRIFT
from firstlight.site.snapshot_facts import TRENDS
from firstlight.site.trends import Curve, MarkedStep, Point, Series
from firstlight.statistics.intervals import median

#: The runs of a level that `statistics.steps` requires.
MIN_RUNS = 5
#: The days up to the newest run of the site that a summary covers.
RECENT_DAYS = 30
_DAY = 86400.0


@dataclass(frozen=True)
class Change:
    """A step of one quantity of one case on one machine."""

    case: str
    series: str  # its key
    machine: str
    quantity: str
    step: MarkedStep
    before: Point  # the last run of the old level
    after: Point  # the first run of the new one
    seen: float  # when the run was measured that revealed the step, in seconds since 1970


@dataclass(frozen=True)
class Departure:
    """A curve whose newest runs, too few for a step, lie outside its level."""

    case: str
    machine: str
    quantity: str
    ratio: float  # their median over the level
    runs: int
    newest: Point


@dataclass(frozen=True)
class Shifts:
    """The changes of the curves that moved in one direction."""

    ratios: tuple[float, ...]  # of each curve, the product of its recent steps

    @property
    def mean(self) -> float:
        """The geometric mean: twice as slow and twice as fast cancel."""
        return math.exp(sum(map(math.log, self.ratios)) / len(self.ratios))


@dataclass(frozen=True)
class Summary:
    """How one quantity changed in the recent days, over all cases and machines."""

    quantity: str
    slower: Shifts
    faster: Shifts
    unchanged: int
    too_short: int  # curves with too few runs for a step


def changes(case: str, series: Sequence[Series]) -> Iterator[Change]:
    """Every step of a case, unordered."""
    for own in series:
        for curve in own.curves:
            for step in curve.steps:
                before, after = curve.points[step.index - 1 : step.index + 1]
                # A step becomes known once its level has enough runs.
                known = curve.points[min(step.index + MIN_RUNS, len(curve.points)) - 1]
                about = (case, own.key, own.machine, curve.quantity)
                yield Change(*about, step, before, after, known.moment)


def newest_first(found: Sequence[Change]) -> list[Change]:
    """By the first run of the new level; within one run, the largest step first."""
    return sorted(
        found,
        key=lambda c: (-c.after.moment, -abs(math.log(c.step.effect.ratio)), c.case, c.quantity),
    )


def departures(case: str, series: Sequence[Series]) -> Iterator[Departure]:
    """Curves whose newest runs all differ from their level by more than drift between jobs."""
    for own in series:
        for curve in own.curves:
            start = curve.steps[-1].index if curve.steps else 0
            values = [p.median for p in curve.points[start:]]
            for runs in range(min(MIN_RUNS - 1, len(values) - MIN_RUNS), 0, -1):
                level, newest = median(values[:-runs]), values[-runs:]
                if min(newest) > level * (1 + DRIFT) or max(newest) < level / (1 + DRIFT):
                    about = (case, own.machine, curve.quantity)
                    yield Departure(*about, median(newest) / level, runs, curve.points[-1])
                    break


def summaries(curves: Sequence[Curve]) -> list[Summary]:
    """A summary per quantity, over the curves with a run in the recent days."""
    newest = max((c.points[-1].moment for c in curves), default=0.0)
    since = newest - RECENT_DAYS * _DAY
    found = []
    for quantity in TRENDS:
        own = [c for c in curves if c.quantity == quantity and c.points[-1].moment >= since]
        net = sorted(_net(curve, since) for curve in own)
        short = sum(len(curve.points) < 2 * MIN_RUNS for curve in own)
        slower, faster = tuple(r for r in net if r > 1), tuple(r for r in net if r < 1)
        if own:
            unchanged = net.count(1) - short
            found.append(Summary(quantity, Shifts(slower), Shifts(faster), unchanged, short))
    return found


def _net(curve: Curve, since: float) -> float:
    """The product of the steps since then; 1 if there is none."""
    recent = [s for s in curve.steps if curve.points[s.index].moment >= since]
    return math.prod(step.effect.ratio for step in recent)
