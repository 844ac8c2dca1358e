"""What plan, samples and run say that cannot be true together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from firstlight.records import REPEATS, Case, CaseSummary, Plan, Run, Sample, Settings, to_json
from firstlight.snapshot.layout import PLAN, RUN, SAMPLES
from firstlight.snapshot.plausibility.cache_labels import mislabelled, unproven_labels
from firstlight.snapshot.plausibility.order_and_clock import (
    implausible,
    is_side_of_gate,
    outside_of_run,
)
from firstlight.snapshot.plausibility.single_process import impossible
from firstlight.snapshot.raw_runs import RawRun, has_number, timed
from firstlight.snapshot.recomputing import differences, recomputed


def untrue(raw: RawRun) -> list[str]:
    """What a run says that does not follow from its plan and its samples, in words."""
    found = recomputed(raw.plan, raw.samples, raw.folder)
    if [case.case for case in raw.run.cases] != [case.case for case in found]:
        return [f"{RUN} does not have the cases of {PLAN}"]
    summaries = [
        f"a summary does not follow from the samples: {difference}"
        for published, computed in zip(raw.run.cases, found, strict=True)
        for difference in differences(published, computed, published.case)
    ]
    return [*_contradictions(raw), *summaries]


def _contradictions(raw: RawRun) -> Iterator[str]:
    cases, settings = raw.plan.cases, raw.plan.settings
    for field, (said, planned) in _said_twice(raw.run, raw.plan).items():
        for difference in differences(said, planned, field):
            yield f"{RUN} differs from {PLAN}: {difference}"
    yield from outside_of_run(raw.run, raw.samples)
    attempts = 1 + REPEATS if is_side_of_gate(raw) else 1
    for case in cases:
        yield from mislabelled(case)
        yield from _miscounted(case, raw.by_case.get(case.id, ()), settings, attempts)
    for sample in raw.samples:
        for reason in impossible(raw.planned[sample.case], sample, settings):
            yield f"{sample.case}, {sample.kind} process {sample.index}: {reason}"
    yield from implausible(raw, cases, settings)
    for summary in raw.run.cases:
        yield from _unsupported(raw, summary)
    if raw.run.complete != all(c.status != "incomplete" for c in raw.run.cases):
        yield f"{RUN} is wrong about being complete"


def _said_twice(run: Run, plan: Plan) -> dict[str, tuple[Any, Any]]:
    """{field: (in run.json, in plan.json)} of what both say."""
    return {
        "id": (run.id, f"{plan.created_at}-{plan.target}"),
        "created_at": (run.created_at, plan.created_at),
        "settings": (run.settings, {"target": plan.target, **to_json(plan.settings)}),
        "warnings": (run.warnings[: len(plan.warnings)], plan.warnings),
        "harness": (run.harness, plan.harness),
        "host": ({k: v for k, v in run.host.items() if k != "load_after"}, plan.host),
    }


def _miscounted(
    case: Case, samples: Sequence[Sample], settings: Settings, attempts: int
) -> Iterator[str]:
    """Processes run in rounds, so those of a case are numbered without a gap.

    A gate repeats a process at once, on both sides, if it breaks on one of them.
    """
    numbers = [s.index for s in sorted(samples, key=lambda s: s.order) if s.kind == "timed"]
    taken = Counter(numbers)
    if taken and max(taken.values()) > attempts:
        often = "twice" if attempts == 1 else f"more than {attempts} times"
        yield f"{SAMPLES} has a timed process of {case.id} {often}"
    elif len(taken) < len(numbers) and numbers != sorted(numbers):
        yield f"{SAMPLES} has a timed process of {case.id} again after a later one"
    elif sorted(taken) != list(range(len(taken))):
        yield f"{SAMPLES} lacks a timed process of {case.id} before its last one"
    elif len(taken) > settings.processes:
        yield f"{SAMPLES} has {len(taken)} timed processes of {case.id}, not {settings.processes}"


def _unsupported(raw: RawRun, case: CaseSummary) -> Iterator[str]:
    """Numbers without evidence."""
    if case.cold_seconds is None or not has_number(case):
        return
    samples = raw.by_case[case.case]
    times = len(timed(samples))
    if case.protocol is None:
        yield f"{case.case} has a number but no protocol"
    if case.correctness is None or not case.correctness.passed:
        yield f"{case.case} has a number but no correct result"
    if times != case.cold_seconds.n or not times:
        yield f"{case.case} has a number from {case.cold_seconds.n} processes, but {times} samples"
    for sample in samples:
        if sample.status != "ok" or sample.correctness is None or not sample.correctness.passed:
            what = f"its {sample.kind} process {sample.index} was not correct"
            yield f"{case.case} has a number but {what} (status {sample.status!r:.20})"
            break
    objections = unproven_labels(raw.planned[case.case], samples)
    if objections:
        yield f"{case.case} has a number but its label is not proven: {objections[0]}"
