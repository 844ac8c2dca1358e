"""Selects pairs of snapshots and compares them as `firstlight compare` does.

Each snapshot is compared with the nearest earlier ones that are comparable: fewer if there are many
snapshots, so that the site grows linearly with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from firstlight.compare.quantities import sample_times
from firstlight.compare.runs import Measured, NotComparableError, RunsReport, compare_runs
from firstlight.records import Run, Sample, WarmCalls
from firstlight.site.snapshot_facts import Facts
from firstlight.statistics.intervals import median

MAX_BASES, MAX_PAIRS = 20, 4000  # of one head, and in all
_KEPT = 200  # snapshots in memory, each reduced to a few numbers per process

Side = list[Measured]


@dataclass(frozen=True)
class SnapshotPair:
    """The ids of two snapshots that measured a case under the same conditions."""

    base: str
    head: str

    @property
    def path(self) -> str:
        """The path of the comparison's page."""
        return f"compare/{self.base[:16]}-{self.head[:16]}.html"


def pairs_of(snapshots: Sequence[Facts]) -> list[SnapshotPair]:
    """The pairs to compare, newest head and nearest base first.

    `snapshots` are the facts of all snapshots. The direct predecessor in any series is always
    included: steps lie between these.
    """
    each = max(1, min(MAX_BASES, MAX_PAIRS // max(1, len(snapshots))))
    ordered = sorted(snapshots, key=lambda facts: (facts["measured"], facts["id"]))
    earlier: dict[str, list[int]] = {}  # places of the snapshots with a point in a series
    found: list[list[SnapshotPair]] = []
    for place, facts in enumerate(ordered):
        series = {c["series"] for run in facts["runs"] for c in run["cases"].values()} - {None}
        seen = [earlier.setdefault(key, []) for key in sorted(series)]
        nearest = sorted({p for places in seen for p in places[-each:]}, reverse=True)
        just_before = {places[-1] for places in seen if places}
        bases = [p for i, p in enumerate(nearest) if i < each or p in just_before]
        found.append([SnapshotPair(ordered[p]["id"], facts["id"]) for p in bases])
        for places in seen:
            places.append(place)
    return [pair for own in reversed(found) for pair in own]


class Comparer:
    """Compares pairs; `load` returns the runs and samples of a snapshot by its id."""

    def __init__(self, load: Callable[[str], Sequence[tuple[Run, Sequence[Sample]]]]) -> None:
        self._side = lru_cache(_KEPT)(lambda snapshot_id: _side(snapshot_id, load(snapshot_id)))

    def report(self, pair: SnapshotPair) -> RunsReport | None:
        """The comparison from base to head, or None if they are not comparable after all."""
        try:
            return compare_runs(self._side(pair.base), self._side(pair.head))
        except NotComparableError:
            return None


def _side(snapshot_id: str, runs: Sequence[tuple[Run, Sequence[Sample]]]) -> Side:
    several = len(runs) > 1
    return [
        Measured(
            snapshot_id[:12] + (f"#{number}" if several else ""), run, [*map(_reduced, samples)]
        )
        for number, (run, samples) in enumerate(runs, start=1)
    ]


def _reduced(sample: Sample) -> Sample:
    """The sample with one warm call and one batch: equal quantities, far faster to compare."""
    warm = sample.warm
    if warm is None or not warm.call_seconds:
        return sample
    level = sample_times(sample).get("warm_call_seconds", 0.0)
    batch = (median(warm.batch_seconds),) if warm.batch_seconds else ()
    return replace(sample, warm=WarmCalls((level,), warm.batch_calls, batch))
