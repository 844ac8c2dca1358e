"""A report that somebody else wrote: what of it holds, what does not, what is not known from here.

What a person reads is checked: the page is drawn again from `replication.json`, every verdict
follows again from the effects in it, and the values from here follow from the samples beside it.
The published values are in the snapshot, which is not part of a report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firstlight.records import to_json
from firstlight.replication.conclusions import misjudged, misreported
from firstlight.replication.report import MOST_BYTES, PAGE, REPORT, SCHEMA, SIGNATURE
from firstlight.replication.selection import ReplicationError
from firstlight.snapshot.errors import SnapshotError
from firstlight.snapshot.layout import LIMITS
from firstlight.snapshot.opening import parse_samples
from firstlight.snapshot.schemas import first_error
from firstlight.snapshot.signatures import signed_by
from firstlight.snapshot.strict_json import canonical, parse_object
from firstlight.snapshot.trust import TrustedKeys


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


def check_report(folder: Path, trusted: TrustedKeys | None = None) -> Checked:
    """Schema, signature, page, verdicts, and the samples of a report in `folder`."""
    data = _read(folder / REPORT)
    plain = parse_object(data, REPORT, MOST_BYTES)
    notes = _Notes(unknown=["that the measured machine was the one that is described"])
    misfit = first_error(plain, SCHEMA)
    if misfit is not None:
        notes.findings.append(f"{REPORT}: {misfit}")
        return notes.checked("")
    if canonical(plain) != data:
        notes.findings.append(f"{REPORT} is not in its one spelling: it was rewritten")
    notes.holds.append(f"{REPORT} fits its schema")
    _check_signature(folder, data, trusted, notes)
    _check_page(folder, plain, notes)
    notes.settle(misjudged(plain), "every verdict follows from the effects in the report")
    for run in plain["runs"]:
        _check_samples(folder, plain, run, notes)
    snapshot = str(plain["snapshot"]["id"])
    notes.unknown.append(
        "the published values, and with them the changes and their p-values, what was not "
        "comparable, the environments and the checks against the reference: they were not computed "
        f"again from the snapshot {snapshot} and the runs"
    )
    return notes.checked(snapshot)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
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
    from firstlight.measure.host import harness
    from firstlight.replication.page import replication_html

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


def _check_samples(
    folder: Path, plain: Mapping[str, Any], run: Mapping[str, Any], notes: _Notes
) -> None:
    # The folder is computed, not read: a report of a stranger names no path that is opened.
    place = f"runs/{str(run['published_folder']).rsplit('/', 1)[-1]}"
    if run["folder"] != place or not place.removeprefix("runs/").isdigit():
        notes.findings.append(f"{run['folder']!r:.60} is no folder of a replication")
        return
    path = folder / place / "samples.jsonl"
    if not path.is_file() or path.is_symlink():
        notes.findings.append(f"{place}/samples.jsonl is missing")
        return
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != run["samples_sha256"]:
        notes.findings.append(
            f"{place}/samples.jsonl is not the file that the report was made from"
        )
        return
    notes.holds.append(f"{place}/samples.jsonl is the file that the report was made from")
    wrong = _misreported(plain, place, path)
    notes.settle(wrong, f"the values from here follow from {place}/samples.jsonl")


def _misreported(plain: Mapping[str, Any], place: str, path: Path) -> list[str]:
    if path.stat().st_size > LIMITS.samples_bytes:
        return [f"{place}/samples.jsonl is larger than what is read"]
    try:
        return misreported(plain, place, parse_samples(path.read_bytes(), path.name))
    except (SnapshotError, ArithmeticError, ValueError, TypeError, KeyError) as error:
        # The samples are a stranger's as well: no number follows from such ones.
        return [f"{place}/samples.jsonl: no values follow from it: {error!s:.200}"]
