"""Checks of a run's processes against its clock and plan: order, overlaps, gaps, equal times.

Processes run one after the other, each in its planned place (on a cluster: one after the other on
each node), and no two take exactly the same time. Times are UTC in ISO 8601, in one spelling that
sorts chronologically.
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
#: Seconds by which a clock may be adjusted during a run.
_CORRECTION = 1.0
#: Seconds: on every machine, cold starts of one case spread further than this.
_MIN_SPREAD = 1e-6
#: Seconds from which on the noise of a phase exceeds the resolution of its clock.
_MIN_PHASE = 1e-3
_MIN_PROCESSES = 3  # two may be equal by chance


def moment(text: str | None) -> float | None:
    """Seconds since 1970, or None if `text` is not a time."""
    if text is None or not _SPELLING.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # the thirtieth of February
        return None


def outside_of_run(run: Run, samples: Sequence[Sample]) -> Iterator[str]:
    """Violations of the order in which a run begins, measures and ends."""
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
    """What the processes of a run cannot have done together."""
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
        yield from _too_similar(case.id, timed(raw.by_case.get(case.id, ())))


def is_side_of_gate(raw: RawRun) -> bool:
    """Whether a gate measured this run, interleaved with its other side."""
    return raw.plan.fingerprint == {}


def _misplaced(samples: list[Sample], cases: Sequence[Case], settings: Settings) -> Iterator[str]:
    """A process that is not where the plan's seed puts it in the order."""
    planned = enumerate(jobs(cases, settings))
    places = {(case.id, kind, index): place for place, (case, kind, index) in planned}
    last, seen = -1, set()
    for sample in samples:
        key = (sample.case, sample.kind, sample.index)
        # A resumed run repeats the checks, and keeps those that fail.
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
    """A process that began before the earlier ones can have ended, or ended after the run."""
    free: float | None = None  # the earliest time at which all processes so far can have ended
    for sample in samples:
        started = moment(sample.started_at)
        if started is None:
            continue  # reported by `outside_of_run`
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
    """The shortest time that the process can have run, by its own times."""
    busy = sample.cold.total_seconds if sample.cold is not None else 0.0
    if sample.warm is None:
        return busy
    # Requests on several connections overlap; the batch times all of them together.
    calls = 0.0 if CONCURRENT in sample.facts else sum(sample.warm.call_seconds)
    return busy + calls + sum(sample.warm.batch_seconds)


def _too_similar(case: str, samples: Sequence[Sample]) -> Iterator[str]:
    """Times that vary less than any clock's, or were copied."""
    starts = [s.cold for s in samples if s.cold is not None]
    series = {"cold starts": [c.total_seconds for c in starts]} | {
        f"times of {phase}": [c.phases_seconds.get(phase) or 0.0 for c in starts]
        for phase in PHASES
    }
    for name, values in series.items():
        if len(values) < _MIN_PROCESSES or median(values) < _MIN_PHASE:
            continue
        if max(values) - min(values) < _MIN_SPREAD or 2 * len({*values}) <= len(values):
            yield f"{case}: its {len(values)} {name} are too similar for any clock"
            return
    calls = [s.warm.call_seconds for s in samples if s.warm is not None]
    if any(len(c) >= 20 and c[0] > _MIN_SPREAD and len({*c}) == 1 for c in calls):
        yield f"{case}: the warm calls of a process are all equal"
    long = [c for c in calls if len(c) >= 20]
    if len({*long}) < len(long):
        yield f"{case}: two processes have the same warm calls"


def unaccounted(raw: RawRun) -> Iterator[str]:
    """Gaps in which a whole unrecorded process may have run."""
    if is_side_of_gate(raw):
        yield f"{raw.folder}: what ran between its processes: it is one side of a gate"
        return
    samples = sorted(raw.samples, key=lambda sample: sample.order)
    shortest = min((busy_seconds(sample) for sample in timed(samples)), default=0.0)
    gaps = []  # (seconds until the next process began, process), where its end is known
    for sample, following in pairwise(samples):
        begun, then = moment(sample.started_at), moment(following.started_at)
        if sample.cold is not None and begun is not None and then is not None:
            gaps.append((max(0.0, then - begun - busy_seconds(sample)), sample))
    # Each framework takes a different time to exit. Leaving out half of the processes makes half of
    # the gaps long, so each case's shortest gap is the reference.
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
