"""`replication.json`: what was repeated, how it came out, and who says so.

DIR/replication.json    the report, in its one spelling
DIR/replication.html    the same for a person
DIR/signature.json      where it was signed: over replication.json
DIR/runs/001/…          what was measured here, as `firstlight run` leaves it
"""

from __future__ import annotations

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
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.redaction import redact
from firstlight.snapshot.schemas import first_error
from firstlight.snapshot.signatures import sign
from firstlight.snapshot.strict_json import canonical, parse_object

REPORT, PAGE, SIGNATURE = "replication.json", "replication.html", "signature.json"
SCHEMA = "replication-1.schema.json"
MOST_BYTES = 64 << 20


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
    state_published: Mapping[str, Any]  # load, cpu_busy_ratio, warnings
    state_here: Mapping[str, Any]
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
    plain = parse_object(data, REPORT, MOST_BYTES)
    error = first_error(plain, SCHEMA)
    if error is not None:
        raise MalformedRecordError(f"{REPORT}: not valid against {SCHEMA}: {error}")
    write_text(folder / PAGE, replication_html(plain))
    write_text(folder / REPORT, data.decode())
    if key is not None:
        write_text(folder / SIGNATURE, sign(key, data, REPORT).decode())
    return data
