"""Prepares a replication, and makes its report once the cases are measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from firstlight.compare.conditions import machine_class
from firstlight.compare.environments import environment_differences, state
from firstlight.compare.runs import DRIFT, Measured
from firstlight.measure.case_selection import filter_cases
from firstlight.records import MalformedRecordError, Run, Settings, now, to_json, write_text
from firstlight.replication.agreement import Pairing, replicate_cases, replicate_ratios
from firstlight.replication.page import replication_html
from firstlight.replication.report import (
    PAGE,
    REPORT,
    SCHEMA,
    SIGNATURE,
    LeftOut,
    Replication,
    RunReplication,
    verdict_counts,
)
from firstlight.replication.selection import (
    ReplicationError,
    Selection,
    named_files,
    select,
    settings_here,
)
from firstlight.report.html import render
from firstlight.snapshot.keys import PrivateKey, sign
from firstlight.snapshot.layout import RAW_FILES
from firstlight.snapshot.opening import RawRun, Snapshot, open_snapshot, programs_of
from firstlight.snapshot.redaction import Owner, redact, redact_run
from firstlight.snapshot.strict_json import canonical, first_error
from firstlight.snapshot.verification import Verification
from firstlight.snapshot.verifying import verify


@dataclass(frozen=True)
class Task:
    """One published run, and which of its cases are measured here."""

    number: int
    folder: str  # runs/001, there and here
    target: str
    selection: Selection
    settings: Settings
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    snapshot: Snapshot
    verification: Verification
    tasks: tuple[Task, ...]

    @property
    def processes(self) -> int:
        return sum(len(t.selection.cases) * t.settings.processes for t in self.tasks)


def prepare(place: str, files: Sequence[Path], expected_id: str | None, pattern: str | None) -> Job:
    """Verify the snapshot and decide what to measure; `files` are benchmark files of the user."""
    found = verify(place, expected_id)
    if found.findings:
        raise ReplicationError(
            f"{place}: it does not verify: {found.findings[0].message}. Nothing was run; see "
            f"`firstlight verify {quote(place)}`."
        )
    snapshot, known = open_snapshot(place), named_files(files)
    if snapshot.id != found.id:
        raise ReplicationError(f"{place}: it changed while it was read.")
    plans = [snapshot.plan(number) for number in range(len(snapshot.runs))]
    # The pattern must match a case of any run, not of each.
    kept = {case.id for case in filter_cases([c for p in plans for c in p.cases], pattern)}
    tasks = []
    for number, plan in enumerate(plans):
        planned = [case for case in plan.cases if case.id in kept]
        statuses = {case.case: case.status for case in snapshot.runs[number].cases}
        selection = select(planned, statuses, programs_of(plan), known)
        wanted, notes = settings_here(plan.settings)
        target, folder = Path(plan.target or "a run").name, snapshot.folders[number]
        tasks.append(Task(number, folder, target, selection, wanted, tuple(notes)))
    if not any(task.selection.cases for task in tasks):
        reasons = {why for task in tasks for why in task.selection.left_out.values()}
        listed = "".join(f"\n  {why}" for why in sorted(reasons)[:5])
        raise ReplicationError(f"{place}: none of its cases can be measured here:{listed}")
    return Job(snapshot, found, tuple(tasks))


def make_public(folder: Path, owner: Owner) -> RawRun:
    """Redact a run in its folder, before the report is derived from it."""
    measured = {name: (folder / name).read_bytes() for name in RAW_FILES}
    files = {name: found.data for name, found in redact_run(measured, owner=owner).items()}
    raw = RawRun.of(f"runs/{folder.name}", files)
    for name, data in files.items():
        write_text(folder / name, data.decode())
    write_text(folder / "report.html", render(raw.run, raw.samples))
    return raw


def report_of(job: Job, measured: Mapping[int, RawRun], begun: str, owner: Owner) -> Replication:
    """The report; `measured[number]` is the repetition of the task with that number."""
    pairings, runs = [], []
    for task in job.tasks:
        if task.number in measured:
            raw = measured[task.number]
            pairings.append(pairing(job.snapshot, task.number, raw))
            notes = tuple(_public(note, owner) for note in task.notes)
            runs.append(run_replication(job.snapshot, task.number, raw.run, notes))
    found = tuple(replicate_cases(pairings))
    return Replication(
        snapshot={
            "id": job.snapshot.id,
            "title": str(job.snapshot.manifest["publication"]["title"]),
            "signature": job.verification.signature,
            "signer": job.verification.signer,
        },
        created_at=begun,
        finished_at=now(),
        harness=next(iter(measured.values())).run.harness,
        runs=tuple(runs),
        cases=found,
        ratios=tuple(replicate_ratios(pairings)),
        left_out=tuple(
            LeftOut(task.folder, case, _public(why, owner))
            for task in job.tasks
            for case, why in task.selection.left_out.items()
        ),
        verdicts=verdict_counts(found),
        drift=DRIFT,
    )


def _public(text: str, owner: Owner) -> str:
    """The text without private data."""
    return str(json.loads(redact(json.dumps(text).encode(), owner=owner).data))


def write_report(folder: Path, report: Replication, key: PrivateKey | None) -> bytes:
    """Write `replication.json`, its page, and its signature; returns the report's bytes."""
    data = canonical(to_json(report))
    error = first_error(json.loads(data), SCHEMA)
    if error is not None:
        raise MalformedRecordError(f"{REPORT}: not valid against {SCHEMA}: {error}")
    write_text(folder / PAGE, replication_html(report))
    write_text(folder / REPORT, data.decode())
    if key is not None:
        write_text(folder / SIGNATURE, sign(key, data, REPORT).decode())
    return data


def pairing(snapshot: Snapshot, number: int, raw: RawRun) -> Pairing:
    """A run of the snapshot and its repetition."""
    published = Measured("published", snapshot.runs[number], snapshot.samples(number))
    return Pairing(snapshot.folders[number], published, Measured("here", raw.run, raw.samples))


def run_replication(
    snapshot: Snapshot, number: int, run: Run, notes: tuple[str, ...]
) -> RunReplication:
    """A run of the snapshot, its repetition, and how their environments differ."""
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
        environment={k: tuple(v) for k, v in environment_differences(published, run).items()},
        notes=notes,
    )
