"""From a location to a replication: verified, selected, and, once measured, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

from firstlight.compare.conditions import machine_class
from firstlight.compare.environments import environment_differences, state
from firstlight.compare.runs import DRIFT, Measured
from firstlight.measure.case_selection import filter_cases
from firstlight.records import Case, Plan, Run, Sample, Settings, now
from firstlight.replication.agreement import Pairing, replicate_cases, replicate_ratios
from firstlight.replication.report import LeftOut, Replication, RunReplication, verdict_counts
from firstlight.replication.selection import (
    Installation,
    ReplicationError,
    Selection,
    select,
    settings_here,
)
from firstlight.snapshot.manifest import dataset
from firstlight.snapshot.opening import Snapshot, open_snapshot
from firstlight.snapshot.raw_runs import programs_of
from firstlight.snapshot.verification import Verification
from firstlight.snapshot.verifying import verify


@dataclass(frozen=True)
class Task:
    """One published run, and what of it is measured here."""

    number: int
    folder: str  # runs/001, there and here
    target: str
    selection: Selection
    settings: Settings
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A verified snapshot and its runs."""

    snapshot: Snapshot
    verification: Verification
    tasks: tuple[Task, ...]

    @property
    def processes(self) -> int:
        """How many timed processes will run."""
        return sum(len(t.selection.cases) * t.settings.processes for t in self.tasks)


def prepare(
    location: str,
    installation: Installation,
    expected_id: str | None = None,
    pattern: str | None = None,
) -> Job:
    """Verify the snapshot and decide what is measured. Refuses one that does not verify."""
    found = verify(location, expected_id)
    if found.findings:
        raise ReplicationError(
            f"{location}: it does not verify: {found.findings[0].message}. Nothing was run; see "
            f"`firstlight verify {quote(location)}`."
        )
    snapshot = open_snapshot(location)
    if snapshot.id != found.id:
        raise ReplicationError(f"{location}: it changed while it was read.")
    plans = [snapshot.plan(number) for number in range(len(snapshot.runs))]
    # The pattern must fit a case of any run, not of each.
    kept = {case.id for case in filter_cases([c for p in plans for c in p.cases], pattern)}
    tasks = tuple(
        _task(snapshot, number, plan, [c for c in plan.cases if c.id in kept], installation)
        for number, plan in enumerate(plans)
    )
    if not any(task.selection.cases for task in tasks):
        reasons = {why for task in tasks for why in task.selection.left_out.values()}
        listed = "".join(f"\n  {why}" for why in sorted(reasons)[:5])
        raise ReplicationError(f"{location}: none of its cases can be measured here:{listed}")
    return Job(snapshot, found, tasks)


def _task(
    snapshot: Snapshot,
    number: int,
    plan: Plan,
    planned: Sequence[Case],
    installation: Installation,
) -> Task:
    files = programs_of(plan)
    statuses = {case.case: case.status for case in snapshot.runs[number].cases}
    selection = select(planned, statuses, files, installation)
    wanted, notes = settings_here(plan.settings)
    target = Path(plan.target or "a run").name
    return Task(number, snapshot.folders[number], target, selection, wanted, tuple(notes))


def report_of(
    job: Job, measured: Mapping[int, tuple[Run, Sequence[Sample]]], created_at: str
) -> Replication:
    """The report, from what was measured: `measured[number]` is the repetition of a task."""
    pairings, runs = [], []
    for task in job.tasks:
        if task.number not in measured:
            continue
        run, samples = measured[task.number]
        pairings.append(pairing(job.snapshot, task.number, task.selection.cases, run, samples))
        runs.append(run_replication(job.snapshot, task.number, run, task.notes))
    cases = replicate_cases(pairings)
    return Replication(
        snapshot=_about(job),
        created_at=created_at,
        finished_at=now(),
        harness=next(iter(measured.values()))[0].harness,
        runs=tuple(runs),
        cases=tuple(cases),
        ratios=tuple(replicate_ratios(pairings)),
        left_out=tuple(
            LeftOut(task.folder, case, why)
            for task in job.tasks
            for case, why in task.selection.left_out.items()
        ),
        verdicts=verdict_counts(cases),
        drift=DRIFT,
    )


def _about(job: Job) -> dict[str, Any]:
    return {
        "id": job.snapshot.id,
        "title": str(job.snapshot.manifest["publication"]["title"]),
        "signature": job.verification.signature,
        "signer": job.verification.signer,
    }


def pairing(
    snapshot: Snapshot, number: int, cases: Sequence[Case], run: Run, samples: Sequence[Sample]
) -> Pairing:
    """A run of the snapshot and its repetition, which measured `cases`."""
    about = snapshot.manifest["runs"][number]["cases"]
    by_case: dict[str, list[Sample]] = {}
    for sample in samples:
        by_case.setdefault(sample.case, []).append(sample)
    return Pairing(
        folder=snapshot.folders[number],
        published=Measured("published", snapshot.runs[number], snapshot.samples(number)),
        here=Measured("here", run, samples),
        data_published={case["case"]: case["dataset"]["sha256"] for case in about},
        data_here={
            case.id: dataset(replace(case, file=None), by_case.get(case.id, []))["sha256"]
            for case in cases
        },
    )


def run_replication(
    snapshot: Snapshot, number: int, run: Run, notes: tuple[str, ...]
) -> RunReplication:
    """What is not the same around a run of the snapshot and its repetition."""
    published, folder = snapshot.runs[number], snapshot.folders[number]
    return RunReplication(
        published_folder=folder,
        published_id=published.id,
        published_samples_sha256=published.samples_sha256,
        folder=folder,
        id=run.id,
        samples_sha256=run.samples_sha256,
        machine_published=machine_class(published.host),
        machine_here=machine_class(run.host),
        state_published=state(published),
        state_here=state(run),
        environment=environment_differences(published, run),
        notes=notes,
    )
