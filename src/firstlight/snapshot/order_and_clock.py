"""What the processes of a run cannot have done together, by the run's own clock and plan.

Processes run one after the other, each in its planned place (on a cluster: one after the other on
each node), and no two of them take exactly the same time. Times are UTC in ISO 8601, in one
spelling, so that texts sort like moments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median

from firstlight.records import CONCURRENT, MEASURED_ON, PHASES, Case, Run, Sample, Settings, jobs
from firstlight.snapshot.layout import RUN, SAMPLES
from firstlight.snapshot.opening import RawRun, timed

_SPELLING = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?\+00:00", re.ASCII)
#: Seconds by which a clock may be put right during a run.
_CORRECTION = 1.0
#: Seconds within which no machine starts several processes, whatever it does.
_EVEN = 1e-6
#: Seconds from which on a phase has more noise than its clock has ticks.
_MIN_PHASE = 1e-3
_FEW = 3  # processes: two may be equal by chance


def moment(text: str | None) -> float | None:
    """Seconds since 1970, or None if `text` is not a time."""
    if text is None or not _SPELLING.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # the thirtieth of February
        return None


def outside_of_run(run: Run, samples: Sequence[Sample]) -> Iterator[str]:
    """Where a run did not begin, measure and end in this order."""
    begin, end = moment(run.created_at), moment(run.finished_at)
    if begin is None:
        yield f"{RUN}: created_at is {run.created_at!r:.60}, not a time in UTC"
    if run.finished_at is not None and end is None:
        yield f"{RUN}: finished_at is {run.finished_at!r:.60}, not a time in UTC"
    if begin is not None and end is not None and end < begin - _CORRECTION:
        yield f"{RUN}: it ended ({run.finished_at}) before it began ({run.created_at})"
    for sample in samples:
        where = f"{SAMPLES}: {sample.case}, {sample.kind} process {sample.index}"
        started = moment(sample.started_at)
        if started is None:
            yield f"{where}: started_at is {sample.started_at!r:.60}, not a time in UTC"
        elif (begin is not None and started < begin - _CORRECTION) or (
            end is not None and started > end + _CORRECTION
        ):
            yield f"{where}: it started at {sample.started_at}, outside its run"


def implausible(raw: RawRun) -> Iterator[str]:
    samples = sorted(raw.samples, key=lambda sample: sample.order)
    if list(raw.samples) != samples:
        yield f"{SAMPLES}: its processes are not in the order in which they ran"
    orders = [sample.order for sample in samples]
    if len({*orders}) != len(orders):
        yield f"{SAMPLES} has two processes at the same position in the order"
    elif not is_side_of_gate(raw) and orders != list(range(len(orders))):
        yield f"{SAMPLES} lacks a process of the run: the order has a gap"
    nodes = {sample.facts.get(MEASURED_ON) for sample in samples}
    if not is_side_of_gate(raw) and nodes <= {None}:
        yield from _misplaced(samples, raw.plan.cases, raw.plan.settings)
    for node in nodes:
        own = [sample for sample in samples if sample.facts.get(MEASURED_ON) == node]
        yield from _overlapping(own, raw.run.finished_at)
    for case in raw.plan.cases:
        yield from _too_even(case.id, timed(raw.by_case.get(case.id, ())))


def is_side_of_gate(raw: RawRun) -> bool:
    """Whether other processes ran between those of this run: a gate resumes both sides itself."""
    return raw.plan.fingerprint == {}


def _misplaced(samples: list[Sample], cases: Sequence[Case], settings: Settings) -> Iterator[str]:
    """The plan's seed says in which order the processes run, and they are counted in that order."""
    planned = enumerate(jobs(cases, settings))
    places = {(case.id, kind, index): place for place, (case, kind, index) in planned}
    last, seen = -1, set()
    for sample in samples:
        key = (sample.case, sample.kind, sample.index)
        # Checks are made anew when a run is resumed, and kept again if they fail then.
        if key in seen and sample.kind != "timed":
            continue
        seen.add(key)
        place = places.get(key, last)
        if place < last:
            yield (
                f"{SAMPLES}: {sample.case}, {sample.kind} process {sample.index} is not where the "
                f"plan's seed ({settings.seed}) puts it"
            )
            return
        last = place


def _overlapping(samples: Sequence[Sample], finished_at: str | None) -> Iterator[str]:
    """No process begins before the ones before it can have ended, nor ends after the run."""
    free: float | None = None  # when all processes so far can have ended, at the earliest
    for sample in samples:
        started = moment(sample.started_at)
        if started is None:
            continue  # said elsewhere
        name = f"{sample.case}, {sample.kind} process {sample.index}"
        if free is not None and started < free - _CORRECTION:
            yield (
                f"{SAMPLES}: {name} began {free - started:.3g} s before the earlier processes can "
                "have ended, by their own times"
            )
            return
        free = max(started, free or started) + busy_seconds(sample)
    end = moment(finished_at)
    if free is not None and end is not None and end < free - _CORRECTION:
        yield f"{SAMPLES}: its processes took {free - end:.3g} s longer than the run"


def busy_seconds(sample: Sample) -> float:
    """How long the process ran at least, by its own times."""
    busy = sample.cold.total_seconds if sample.cold is not None else 0.0
    if sample.warm is None:
        return busy
    # Requests on several connections overlap; the batch is the time of all of them.
    calls = 0.0 if CONCURRENT in sample.facts else sum(sample.warm.call_seconds)
    return busy + calls + sum(sample.warm.batch_seconds)


def _too_even(case: str, samples: Sequence[Sample]) -> Iterator[str]:
    """Times with less variation than the clock that took them, or copied ones."""
    starts = [s.cold for s in samples if s.cold is not None]
    series = {"cold starts": [c.total_seconds for c in starts]} | {
        f"times of {phase}": [c.phases_seconds.get(phase) or 0.0 for c in starts]
        for phase in PHASES
    }
    for name, values in series.items():
        if len(values) < _FEW or median(values) < _MIN_PHASE:
            continue
        if max(values) - min(values) < _EVEN or 2 * len({*values}) <= len(values):
            yield f"{case}: its {len(values)} {name} are too similar for any clock"
            return
    calls = [s.warm.call_seconds for s in samples if s.warm is not None]
    if any(len(c) >= 20 and c[0] > _EVEN and len({*c}) == 1 for c in calls):
        yield f"{case}: the warm calls of a process are all equal"
    long = [c for c in calls if len(c) >= 20]
    if len({*long}) < len(long):
        yield f"{case}: two processes have the same warm calls"


def unaccounted(raw: RawRun) -> Iterator[str]:
    """Where a whole process, or more, may have run of which nothing is recorded."""
    if is_side_of_gate(raw):
        yield f"{raw.folder}: what ran between its processes: it is one side of a gate"
        return
    samples = sorted(raw.samples, key=lambda sample: sample.order)
    shortest = min((busy_seconds(sample) for sample in timed(samples)), default=0.0)
    gaps = []  # seconds after each process until the next one began, where its end is known
    for sample, following in pairwise(samples):
        begun, then = moment(sample.started_at), moment(following.started_at)
        if sample.cold is not None and begun is not None and then is not None:
            gaps.append((max(0.0, then - begun - busy_seconds(sample)), sample))
    # Each framework takes its own time to end. Whoever leaves out half of the processes makes half
    # of the gaps long, so the shortest one is the measure.
    usual: dict[str, float] = {}
    for seconds, sample in gaps:
        usual[sample.case] = min(seconds, usual.get(sample.case, seconds))
    for seconds, sample in gaps:
        if seconds > max(2 * usual[sample.case] + shortest, _CORRECTION):
            yield (
                f"{raw.folder}: what ran in the {seconds:.3g} s after {sample.case}, process "
                f"{sample.index}: longer than a whole process, and nothing is recorded of it"
            )
            return
