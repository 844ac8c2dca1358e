"""A report derived again, and where it is not what follows: from the effects in it, from the runs
beside it, and from the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from firstlight.compare.conditions import busy_share, machine_class
from firstlight.compare.environments import state
from firstlight.compare.runs import DRIFT
from firstlight.replication.agreement import (
    conclude_cases,
    conclude_ratios,
    measured_values,
    paired_values,
    ratio_effect,
    replicate_cases,
    replicate_ratios,
)
from firstlight.replication.repeating import pairing, run_replication
from firstlight.replication.report import ALPHA, Replication, RunReplication, verdict_counts
from firstlight.snapshot.opening import Snapshot
from firstlight.snapshot.plausibility import differences, untrue
from firstlight.snapshot.raw_runs import RawRun
from firstlight.statistics.intervals import median_estimate

#: Of so many places in one record the first are named.
_MAX_NAMED = 3


def misjudged(report: Replication) -> Iterator[str]:
    """Where a verdict, reason or count is not the one that the report's own effects lead to."""
    runs = {run.folder: run for run in report.runs}
    strays = [case for case in report.cases if case.run not in runs]
    if strays:
        yield from (f"{c.case!r:.100}: its run {c.run!r:.40} is not in the report" for c in strays)
        return
    busy = {
        run.folder
        for run in report.runs
        for side in (run.state_published, run.state_here)
        if busy_share(side) is not None
    }
    cases = conclude_cases(report.cases, busy)
    for said, concluded in zip(report.cases, cases, strict=True):
        yield from _differing(said, concluded, f"{said.case!r:.100}")
    for ratio, right in zip(report.ratios, conclude_ratios(report.ratios), strict=True):
        name = f"{ratio.case!r:.100} over {ratio.against!r:.100}, {ratio.quantity!r:.40}"
        yield from _differing(ratio, right, name)
    yield from _differing(report.verdicts, verdict_counts(cases), "verdicts")
    yield from _differing((report.drift, report.alpha), (DRIFT, ALPHA), "drift and alpha")


def misreported(report: Replication, raw: RawRun) -> Iterator[str]:
    """Where a value from here is not the one that the samples beside the report lead to."""
    for case in report.cases:
        values = measured_values(raw.samples, case.case) if case.run == raw.folder else {}
        for delta in case.deltas if case.run == raw.folder else ():
            own = median_estimate(values[delta.quantity]) if delta.quantity in values else None
            yield from _differing(delta.here, own, f"{case.case!r:.100}: {delta.quantity} here")
    for ratio in report.ratios:
        if ratio.run == raw.folder:
            pairs = paired_values(raw.samples, ratio.case, ratio.against, ratio.quantity)
            here = ratio_effect(pairs) if pairs else None
            yield from _differing(ratio.here, here, f"{ratio.case!r:.100}: its ratio here")


def misdescribed(report: Replication, said: RunReplication, raw: RawRun) -> Iterator[str]:
    """Where a report says something else of a run than the run itself."""
    yield from (f"{raw.folder}: {text}" for text in untrue(raw)[:_MAX_NAMED])
    run = raw.run
    wanted = {"id": run.id, "machine_here": machine_class(run.host), "state_here": state(run)}
    yield from _differing({name: getattr(said, name) for name in wanted}, wanted, raw.folder)
    described = [case for case in report.cases if case.run == raw.folder]
    if [case.case for case in described] != [case.case for case in run.cases]:
        yield f"{raw.folder}: the cases of the report are not those of the run"
        return
    for told, case in zip(described, run.cases, strict=True):
        own = {"status_here": told.status_here, "correctness_here": told.correctness_here}
        outcome = {"status_here": case.status, "correctness_here": case.correctness}
        yield from _differing(own, outcome, f"{case.case!r:.100}")


def miscomputed(
    report: Replication, snapshot: Snapshot, runs: Mapping[str, RawRun]
) -> Iterator[str]:
    """Where a report is not what follows from the snapshot and the runs that repeated it."""
    title = str(snapshot.manifest["publication"]["title"])
    if report.snapshot["title"] != title:
        yield f"the snapshot is called {title!r:.80}"
    pairs = []
    for said in report.runs:
        number, raw = snapshot.folders.index(said.folder), runs[said.folder]
        pairs.append(pairing(snapshot, number, raw.plan.cases, raw.run, raw.samples))
        wanted = run_replication(snapshot, number, raw.run, said.notes)
        yield from _differing(said, wanted, raw.folder)
    yield from _differing(report.cases, replicate_cases(pairs), "cases")
    yield from _differing(report.ratios, replicate_ratios(pairs), "ratios")
    repeated = {(case.run, case.case) for case in report.cases}
    for left in report.left_out:
        if (left.run, left.case) in repeated:
            yield f"{left.case!r:.100} is said to be left out, and was measured"


def _differing(said: Any, wanted: Any, where: str) -> Iterator[str]:
    return islice(differences(said, wanted, where), _MAX_NAMED)
