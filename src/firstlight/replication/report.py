"""`replication.json`: what was repeated, how it came out, and who says so.

DIR/replication.json    the report, in its one spelling
DIR/replication.html    the same for a person
DIR/signature.json      where it was signed: over replication.json
DIR/runs/001/…          what was measured here, as `firstlight run` leaves it
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstlight.records import MalformedRecordError, to_json, write_text
from firstlight.replication.comparison import (
    ALPHA,
    VERDICTS,
    CaseReplication,
    RatioReplication,
)
from firstlight.replication.selection import ReplicationError
from firstlight.snapshot.errors import SnapshotError
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.redaction import redact
from firstlight.snapshot.schemas import first_error
from firstlight.snapshot.signatures import sign, signed_by
from firstlight.snapshot.strict_json import canonical, parse_object
from firstlight.snapshot.trust import TrustedKeys

REPORT, PAGE, SIGNATURE = "replication.json", "replication.html", "signature.json"
SCHEMA = "replication-1.schema.json"
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class RunReplication:
    """A published run, its repetition, and what is not the same around them."""

    published_folder: str
    published_id: str
    published_samples_sha256: str | None
    folder: str
    id: str
    samples_sha256: str | None
    machine_published: str
    machine_here: str
    environment: Mapping[str, Sequence[str]]
    notes: tuple[str, ...]  # what of the settings could not be the same


@dataclass(frozen=True)
class LeftOut:
    """A case that was not measured again."""

    run: str
    case: str
    reason: str


@dataclass(frozen=True)
class Replication:
    """The report."""

    snapshot: Mapping[str, Any]  # id, title, signature as verified here, signer
    created_at: str
    finished_at: str
    harness: Mapping[str, Any]
    runs: tuple[RunReplication, ...]
    cases: tuple[CaseReplication, ...]
    ratios: tuple[RatioReplication, ...]
    left_out: tuple[LeftOut, ...]
    verdicts: Mapping[str, int]
    drift: float  # the band within which two jobs agree, as a share
    alpha: float = ALPHA
    schema: str = "firstlight.replication"
    schema_version: int = 1

    @property
    def exit_code(self) -> int:
        """0 every case agrees, 1 one differs, 3 none differs and not all agree."""
        if self.verdicts["differs"]:
            return 1
        return 0 if self.verdicts["agrees"] == sum(self.verdicts.values()) else 3


def counted(cases: Sequence[CaseReplication]) -> dict[str, int]:
    """{'agrees': 3, …}: every verdict, also those that nothing has."""
    return {verdict: sum(c.verdict == verdict for c in cases) for verdict in VERDICTS}


def write_report(folder: Path, report: Replication, key: PrivateKey | None) -> bytes:
    """Write `replication.json`, its page, and its signature; returns the report's bytes.

    Home directories are left out, as from a snapshot: a report is made to be shown.
    """
    from firstlight.replication.page import replication_html

    data = redact(canonical(to_json(report))).data
    plain = parse_object(data, REPORT, _MOST_BYTES)
    error = first_error(plain, SCHEMA)
    if error is not None:
        raise MalformedRecordError(f"{REPORT}: not valid against {SCHEMA}: {error}")
    write_text(folder / PAGE, replication_html(plain))
    write_text(folder / REPORT, data.decode())
    if key is not None:
        write_text(folder / SIGNATURE, sign(key, data, REPORT).decode())
    return data


@dataclass(frozen=True)
class Checked:
    """What holds of a report that somebody else wrote."""

    snapshot: str
    holds: tuple[str, ...]
    findings: tuple[str, ...]
    unknown: tuple[str, ...]


def check_report(folder: Path, trusted: TrustedKeys | None = None) -> Checked:
    """Schema, signature and the hashes of the samples of a report in `folder`."""
    try:
        with open(folder / REPORT, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ReplicationError(f"{folder / REPORT}: cannot be read: {error.strerror}.") from None
    plain = parse_object(data, REPORT, _MOST_BYTES)
    holds: list[str] = []
    findings: list[str] = []
    unknown = ["that the measured machine was the one that is described"]
    misfit = first_error(plain, SCHEMA)
    if misfit is not None:
        return Checked("", (), (f"{REPORT}: {misfit}",), tuple(unknown))
    if canonical(plain) != data:
        findings.append(f"{REPORT} is not in its one spelling: it was rewritten")
    holds.append(f"{REPORT} fits its schema")
    _check_signature(folder, data, trusted, holds, findings, unknown)
    for run in plain["runs"]:
        _check_samples(folder, run, holds, findings)
    return Checked(str(plain["snapshot"]["id"]), tuple(holds), tuple(findings), tuple(unknown))


def _check_signature(
    folder: Path,
    data: bytes,
    trusted: TrustedKeys | None,
    holds: list[str],
    findings: list[str],
    unknown: list[str],
) -> None:
    path = folder / SIGNATURE
    if not path.is_file():
        unknown.append("who wrote it: it is not signed")
        return
    try:
        with open(path, "rb") as file:
            key = signed_by(file.read(1 << 14), data, REPORT)
    except SnapshotError as error:
        findings.append(str(error))
        return
    name = (trusted or TrustedKeys.of_user()).name_of(key)
    holds.append(f"signed by {name}" if name else f"signed with the key {key.id}")
    if name is None:
        unknown.append(f"who holds the key {key.id}: it is not among your trusted keys")


def _check_samples(
    folder: Path, run: Mapping[str, Any], holds: list[str], findings: list[str]
) -> None:
    # The folder is computed, not read: a report of a stranger names no path that is opened.
    place = f"runs/{str(run['published_folder']).rsplit('/', 1)[-1]}"
    if run["folder"] != place or not place.removeprefix("runs/").isdigit():
        findings.append(f"{run['folder']!r:.60} is no folder of a replication")
        return
    path = folder / place / "samples.jsonl"
    if not path.is_file() or path.is_symlink():
        findings.append(f"{place}/samples.jsonl is missing")
        return
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != run["samples_sha256"]:
        findings.append(f"{place}/samples.jsonl is not the file that the report was made from")
    else:
        holds.append(f"{place}/samples.jsonl is the file that the report was made from")
