"""Checks somebody else's report: what holds, what does not, and what cannot be known.

The page is drawn again, every verdict is derived again from the effects, and the repeated values
from the runs beside the report. The published values are in the snapshot: if it is given too, the
whole report is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from firstlight.compare.conditions import busy_share, machine_class
from firstlight.compare.environments import state
from firstlight.compare.runs import DRIFT
from firstlight.measure.host import harness
from firstlight.records import to_json
from firstlight.replication import agreement
from firstlight.replication.page import replication_html
from firstlight.replication.repeating import pairing, run_replication
from firstlight.replication.report import (
    ALPHA,
    MAX_BYTES,
    PAGE,
    REPORT,
    SCHEMA,
    SIGNATURE,
    Replication,
    RunReplication,
    verdict_counts,
)
from firstlight.replication.selection import ReplicationError
from firstlight.snapshot.errors import SnapshotError
from firstlight.snapshot.keys import signed_by
from firstlight.snapshot.layout import LIMITS, RAW_FILES, SAMPLES, require_expected
from firstlight.snapshot.opening import RawRun, Snapshot, open_snapshot
from firstlight.snapshot.plausibility import differences, method_and_inconsistencies
from firstlight.snapshot.strict_json import canonical, decoded, first_error, parse_object
from firstlight.snapshot.trust import TrustedKeys
from firstlight.snapshot.verifying import verify
from firstlight.statistics.intervals import median_estimate

_MAX_NAMED = 3  # differences listed per record
#: What evaluating a stranger's numbers may raise.
_UNFIT = (SnapshotError, ArithmeticError, ValueError, TypeError, LookupError)


@dataclass
class Checked:
    """The result of checking a report."""

    snapshot: str
    holds: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def settle(self, wrong: Iterable[str], holds: str) -> None:
        """Add the findings in `wrong`, or `holds` if there are none."""
        found = [*islice(wrong, 20)]
        self.findings += found
        self.holds += [] if found else [holds]


def check_report(
    folder: Path, snapshot: str | None = None, expected_id: str | None = None
) -> Checked:
    """Check the report in `folder`: schema, signature, page, verdicts, and the runs beside it.

    With `snapshot`, the location of the repeated snapshot, the whole report is computed again;
    `expected_id` is its id from elsewhere, such as a paper.
    """
    data = _read(folder / REPORT)
    plain = parse_object(data, REPORT, MAX_BYTES)
    checked = Checked("", unknown=["that the measured machine was the one that is described"])
    misfit = first_error(plain, SCHEMA)
    if misfit is not None:
        checked.findings.append(f"{REPORT}: {misfit}")
        return checked
    report = decoded(Replication, plain, REPORT)
    checked.holds.append(f"{REPORT} fits its schema")
    if canonical(to_json(report)) != data:
        checked.findings.append(f"{REPORT} is not in its one spelling: it was rewritten")
    checked.snapshot = about = str(report.snapshot["id"])
    if expected_id is not None:
        other = f"the report is about the snapshot {about}, not {expected_id!r:.80}"
        fits = about.startswith(require_expected(expected_id))
        checked.settle([] if fits else [other], "it is about that snapshot")
    _check_signature(folder, data, checked)
    _check_page(folder, report, checked)
    checked.settle(_wrong_verdicts(report), "every verdict follows from the effects in the report")
    runs = {run.folder: _check_run(folder, report, run, checked) for run in report.runs}
    if snapshot is not None:
        _check_snapshot(snapshot, report, runs, checked)
    else:
        checked.unknown.append(
            "the published values, and with them the changes and their p-values, and what was not "
            f"comparable: give the snapshot {about} too, and they are computed again"
        )
    return checked


def _read(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise ReplicationError(f"{path}: cannot be read: {error.strerror}.") from None


def _check_signature(folder: Path, data: bytes, checked: Checked) -> None:
    if not (folder / SIGNATURE).is_file():
        checked.unknown.append("who wrote it: it is not signed")
        return
    try:
        key = signed_by(_read(folder / SIGNATURE, 1 << 14), data, REPORT)
    except SnapshotError as error:
        checked.findings.append(str(error))
        return
    name = TrustedKeys.of_user().name_of(key)
    checked.holds.append(f"signed by {name}" if name else f"signed with the key {key.id}")
    if name is None:
        checked.unknown.append(f"who holds the key {key.id}: it is not among your trusted keys")


def _check_page(folder: Path, report: Replication, checked: Checked) -> None:
    """The page is not signed, so it must be exactly the one made from the report."""
    path = folder / PAGE
    if not path.is_file() or path.is_symlink():
        checked.findings.append(f"{PAGE} is missing")
    elif _read(path) == replication_html(report).encode():
        checked.holds.append(f"{PAGE} is the page of this report")
    elif report.harness == to_json(harness()):
        checked.findings.append(f"{PAGE} is not the page of this report: it was changed")
    else:
        version = str(report.harness.get("version"))[:40]
        checked.unknown.append(
            f"{PAGE}: this Firstlight draws another page from the report, which says that it was "
            f"written by Firstlight {version}. Do not rely on the page, read {REPORT}"
        )


def _check_run(
    folder: Path, report: Replication, run: RunReplication, checked: Checked
) -> RawRun | None:
    """Check the run beside the report; returns None if it cannot be evaluated."""
    # The schema allows only the folders runs/NNN, so no path chosen by a stranger is opened.
    place = run.folder
    if place != run.published_folder:
        checked.findings.append(f"{place} is said to repeat {run.published_folder}")
        return None
    files = {}
    for name in RAW_FILES:
        path = folder / place / name
        if not path.is_file() or path.is_symlink():
            checked.findings.append(f"{place}/{name} is missing")
            return None
        files[name] = _read(path, LIMITS.samples_bytes)
        if len(files[name]) > LIMITS.samples_bytes:
            checked.findings.append(f"{place}/{name} is larger than what is read")
            return None
    if hashlib.sha256(files[SAMPLES]).hexdigest() != run.samples_sha256:
        checked.findings.append(f"{place}/{SAMPLES} is not the file that the report was made from")
        return None
    checked.holds.append(f"{place}/{SAMPLES} is the file that the report was made from")
    try:
        raw = RawRun.of(place, files)
        follows = f"the values from here follow from {place}/{SAMPLES}"
        checked.settle(_misreported(report, raw), follows)
        checked.settle(_misdescribed(report, run, raw), f"{place} is the run that is described")
    except _UNFIT as error:
        checked.findings.append(f"{place}: no values follow from it: {error!s:.200}")
        return None
    return raw


def _check_snapshot(
    location: str, report: Replication, runs: Mapping[str, RawRun | None], checked: Checked
) -> None:
    found = verify(location, str(report.snapshot["id"]))
    if found.findings:
        checked.findings.append(f"{location}: {found.findings[0].message}")
        return
    known = {place: raw for place, raw in runs.items() if raw is not None}
    if len(known) < len(runs):
        checked.unknown.append("whether it follows from the snapshot: a run of it cannot be read")
        return
    try:
        wrong = list(_miscomputed(report, open_snapshot(location), known))
    except _UNFIT as error:
        wrong = [f"the report cannot be computed again: {error!s:.200}"]
    checked.settle(wrong, "all values, effects and verdicts follow from the snapshot and runs")


def _wrong_verdicts(report: Replication) -> Iterator[str]:
    """Verdicts, reasons and counts that do not follow from the report's own effects."""
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
    cases = agreement.conclude_cases(report.cases, busy)
    for reported, concluded in zip(report.cases, cases, strict=True):
        yield from _compared(reported, concluded, f"{reported.case!r:.100}")
    for ratio, right in zip(report.ratios, agreement.conclude_ratios(report.ratios), strict=True):
        name = f"{ratio.case!r:.100} over {ratio.against!r:.100}, {ratio.quantity!r:.40}"
        yield from _compared(ratio, right, name)
    yield from _compared(report.verdicts, verdict_counts(cases), "verdicts")
    yield from _compared((report.drift, report.alpha), (DRIFT, ALPHA), "drift and alpha")


def _misreported(report: Replication, raw: RawRun) -> Iterator[str]:
    """Repeated values that do not follow from the samples beside the report."""
    for case in (case for case in report.cases if case.run == raw.folder):
        values = agreement.measured_values(raw.samples, case.case)
        for delta in case.deltas:
            own = median_estimate(values[delta.quantity]) if delta.quantity in values else None
            yield from _compared(delta.here, own, f"{case.case!r:.100}: {delta.quantity} here")
    for ratio in (ratio for ratio in report.ratios if ratio.run == raw.folder):
        pairs = agreement.paired_values(raw.samples, ratio.case, ratio.against, ratio.quantity)
        here = agreement.ratio_effect(pairs) if pairs else None
        yield from _compared(ratio.here, here, f"{ratio.case!r:.100}: its ratio here")


def _misdescribed(report: Replication, described: RunReplication, raw: RawRun) -> Iterator[str]:
    """Where the report describes the run beside it wrongly, or that run is inconsistent."""
    _, (found,) = method_and_inconsistencies([raw])
    yield from (f"{raw.folder}: {text}" for text in found[:_MAX_NAMED])
    run = raw.run
    wanted = {"id": run.id, "machine_here": machine_class(run.host), "state_here": state(run)}
    yield from _compared({name: getattr(described, name) for name in wanted}, wanted, raw.folder)
    reported = [case for case in report.cases if case.run == raw.folder]
    if [case.case for case in reported] != [case.case for case in run.cases]:
        yield f"{raw.folder}: the cases of the report are not those of the run"
        return
    for own_case, case in zip(reported, run.cases, strict=True):
        own = {"status_here": own_case.status_here, "correctness_here": own_case.correctness_here}
        outcome = {"status_here": case.status, "correctness_here": case.correctness}
        yield from _compared(own, outcome, f"{case.case!r:.100}")


def _miscomputed(
    report: Replication, snapshot: Snapshot, runs: Mapping[str, RawRun]
) -> Iterator[str]:
    """Where a report does not follow from the snapshot and the runs that repeated it."""
    title = str(snapshot.manifest["publication"]["title"])
    if report.snapshot["title"] != title:
        yield f"the snapshot is called {title!r:.80}"
    pairs = []
    for reported in report.runs:
        number, raw = snapshot.folders.index(reported.folder), runs[reported.folder]
        pairs.append(pairing(snapshot, number, raw))
        wanted = run_replication(snapshot, number, raw.run, reported.notes)
        yield from _compared(reported, wanted, raw.folder)
    yield from _compared(report.cases, agreement.replicate_cases(pairs), "cases")
    yield from _compared(report.ratios, agreement.replicate_ratios(pairs), "ratios")
    repeated = {(case.run, case.case) for case in report.cases}
    for left in report.left_out:
        if (left.run, left.case) in repeated:
            yield f"{left.case!r:.100} is said to be left out, and was measured"


def _compared(found: object, expected: object, where: str) -> Iterator[str]:
    return islice(differences(found, expected, where), _MAX_NAMED)
