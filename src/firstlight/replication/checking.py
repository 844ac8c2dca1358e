"""A report that somebody else wrote: what of it holds, what does not, what is not known from here.

What a person reads is checked: the page is drawn again from `replication.json`, every verdict
follows again from the effects in it, and the values from here, what became of each case and what
the machine did follow from the runs beside it. The published values are in the snapshot, which is
not part of a report: where it is given too, the whole report is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firstlight.measure.host import harness
from firstlight.records import to_json
from firstlight.replication.conclusions import misjudged, misreported
from firstlight.replication.page import replication_html
from firstlight.replication.rederiving import miscomputed, misdescribed
from firstlight.replication.report import MAX_BYTES, PAGE, REPORT, SCHEMA, SIGNATURE
from firstlight.replication.selection import ReplicationError
from firstlight.snapshot.detached_signature import signed_by
from firstlight.snapshot.errors import SnapshotError
from firstlight.snapshot.layout import LIMITS, PLAN, RUN, SAMPLES, require_expected
from firstlight.snapshot.opening import open_snapshot
from firstlight.snapshot.raw_runs import RawRun
from firstlight.snapshot.schemas import first_error
from firstlight.snapshot.strict_json import canonical, parse_object
from firstlight.snapshot.trust import TrustedKeys
from firstlight.snapshot.verifying import verify


@dataclass(frozen=True)
class Checked:
    """What holds of a report that somebody else wrote."""

    snapshot: str
    holds: tuple[str, ...]
    findings: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass
class _Notes:
    holds: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def settle(self, wrong: Sequence[str], holds: str) -> None:
        """Findings, or what holds because there are none."""
        self.findings += wrong
        self.holds += [] if wrong else [holds]

    def checked(self, snapshot: str) -> Checked:
        return Checked(snapshot, tuple(self.holds), tuple(self.findings), tuple(self.unknown))


def check_report(
    folder: Path,
    trusted: TrustedKeys | None = None,
    snapshot: str | None = None,
    expected_id: str | None = None,
) -> Checked:
    """Schema, signature, page, verdicts, and the runs beside a report in `folder`.

    With `snapshot`, where what was repeated lies, everything in the report is computed again from
    both; `expected_id` is the id from elsewhere, such as a paper.
    """
    data = _read(folder / REPORT)
    plain = parse_object(data, REPORT, MAX_BYTES)
    notes = _Notes(unknown=["that the measured machine was the one that is described"])
    misfit = first_error(plain, SCHEMA)
    if misfit is not None:
        notes.findings.append(f"{REPORT}: {misfit}")
        return notes.checked("")
    if canonical(plain) != data:
        notes.findings.append(f"{REPORT} is not in its one spelling: it was rewritten")
    notes.holds.append(f"{REPORT} fits its schema")
    about = str(plain["snapshot"]["id"])
    if expected_id is not None:
        other = [f"the report is about the snapshot {about}, not {expected_id!r:.80}"]
        fits = about.startswith(require_expected(expected_id))
        notes.settle([] if fits else other, "it is about that snapshot")
    _check_signature(folder, data, trusted, notes)
    _check_page(folder, plain, notes)
    notes.settle(misjudged(plain), "every verdict follows from the effects in the report")
    runs = {run["folder"]: _check_run(folder, plain, run, notes) for run in plain["runs"]}
    if snapshot is not None:
        _check_snapshot(snapshot, plain, runs, notes)
    else:
        notes.unknown.append(
            "the published values, and with them the changes and their p-values, and what was not "
            f"comparable: give the snapshot {about} too, and they are computed again"
        )
    return notes.checked(about)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ReplicationError(f"{path}: cannot be read: {error.strerror}.") from None
    return data


def _check_signature(folder: Path, data: bytes, trusted: TrustedKeys | None, notes: _Notes) -> None:
    path = folder / SIGNATURE
    if not path.is_file():
        notes.unknown.append("who wrote it: it is not signed")
        return
    try:
        with open(path, "rb") as file:
            key = signed_by(file.read(1 << 14), data, REPORT)
    except SnapshotError as error:
        notes.findings.append(str(error))
        return
    name = (trusted or TrustedKeys.of_user()).name_of(key)
    notes.holds.append(f"signed by {name}" if name else f"signed with the key {key.id}")
    if name is None:
        notes.unknown.append(f"who holds the key {key.id}: it is not among your trusted keys")


def _check_page(folder: Path, plain: Mapping[str, Any], notes: _Notes) -> None:
    """The page is not signed: it is the one that follows from the report, or it is none."""
    path = folder / PAGE
    if not path.is_file() or path.is_symlink():
        notes.findings.append(f"{PAGE} is missing")
    elif _read(path) == replication_html(plain).encode():
        notes.holds.append(f"{PAGE} is the page of this report")
    elif plain["harness"] == to_json(harness()):
        notes.findings.append(f"{PAGE} is not the page of this report: it was changed")
    else:
        version = str(plain["harness"].get("version"))[:40]
        notes.unknown.append(
            f"{PAGE}: this Firstlight draws another page from the report, which says that it was "
            f"written by Firstlight {version}. Do not rely on the page, read {REPORT}"
        )


def _check_run(
    folder: Path, plain: Mapping[str, Any], run: Mapping[str, Any], notes: _Notes
) -> RawRun | None:
    """The run beside the report, held against it; None if nothing can be made of it."""
    # The folder is computed, not read: a report of a stranger names no path that is opened.
    place = f"runs/{str(run['published_folder']).rsplit('/', 1)[-1]}"
    if run["folder"] != place or not place.removeprefix("runs/").isdigit():
        notes.findings.append(f"{run['folder']!r:.60} is no folder of a replication")
        return None
    files = {}
    for name in (PLAN, SAMPLES, RUN):
        path = folder / place / name
        if not path.is_file() or path.is_symlink():
            notes.findings.append(f"{place}/{name} is missing")
            return None
        if path.stat().st_size > LIMITS.samples_bytes:
            notes.findings.append(f"{place}/{name} is larger than what is read")
            return None
        files[name] = path.read_bytes()
    if hashlib.sha256(files[SAMPLES]).hexdigest() != run["samples_sha256"]:
        notes.findings.append(f"{place}/{SAMPLES} is not the file that the report was made from")
        return None
    notes.holds.append(f"{place}/{SAMPLES} is the file that the report was made from")
    try:
        raw = RawRun.of(place, files)
        wrong = misreported(plain, place, raw.samples)
        notes.settle(wrong, f"the values from here follow from {place}/{SAMPLES}")
        notes.settle(misdescribed(plain, run, raw), f"{place} is the run that is described")
    except (SnapshotError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        # The run is a stranger's as well: no number follows from such files.
        notes.findings.append(f"{place}: no values follow from it: {error!s:.200}")
        return None
    return raw


def _check_snapshot(
    location: str, plain: Mapping[str, Any], runs: Mapping[str, RawRun | None], notes: _Notes
) -> None:
    """Everything that follows from the snapshot and the runs, computed again."""
    found = verify(location, str(plain["snapshot"]["id"]))
    if found.findings:
        notes.findings.append(f"{location}: {found.findings[0].message}")
        return
    known = {place: raw for place, raw in runs.items() if raw is not None}
    if len(known) < len(runs):
        notes.unknown.append("whether it follows from the snapshot: a run of it cannot be read")
        return
    try:
        wrong = list(miscomputed(plain, open_snapshot(location), known))
    except (SnapshotError, ArithmeticError, ValueError, TypeError, LookupError) as error:
        wrong = [f"the report cannot be computed again: {error!s:.200}"]
    notes.settle(wrong[:20], "all values, effects and verdicts follow from the snapshot and runs")
