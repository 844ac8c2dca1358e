"""`replication.json`: what was repeated, how it came out, and who says so.

DIR/replication.json    the report, in its one spelling
DIR/replication.html    the same for a person
DIR/signature.json      where it was signed: over replication.json
DIR/runs/001/…          what was measured here, as `firstlight run` leaves it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstlight.records import MalformedRecordError, to_json, write_text
from firstlight.replication.agreement import ALPHA, VERDICTS, CaseReplication, RatioReplication
from firstlight.replication.page import replication_html
from firstlight.report.html import render
from firstlight.snapshot.detached_signature import sign
from firstlight.snapshot.keys import PrivateKey
from firstlight.snapshot.layout import PLAN, RUN, SAMPLES
from firstlight.snapshot.raw_runs import RawRun
from firstlight.snapshot.redaction import Owner, redact
from firstlight.snapshot.schemas import first_error
from firstlight.snapshot.strict_json import canonical, parse_object

REPORT, PAGE, SIGNATURE = "replication.json", "replication.html", "signature.json"
SCHEMA = "replication-1.schema.json"
MAX_BYTES = 64 << 20


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


def verdict_counts(cases: Sequence[CaseReplication]) -> dict[str, int]:
    """{'agrees': 3, …}: every verdict, also those that nothing has."""
    return {verdict: sum(c.verdict == verdict for c in cases) for verdict in VERDICTS}


def make_public(folder: Path, owner: Owner) -> RawRun:
    """Take private things out of a run that was measured here: a report is made to be shown.

    As from a snapshot, and before the report is made: then everything in it follows from the files
    beside it, on whoever's machine it is checked.
    """
    measured = {name: (folder / name).read_bytes() for name in (PLAN, SAMPLES, RUN)}
    files = {name: redact(data, owner=owner).data for name, data in measured.items()}
    was, public = (hashlib.sha256(of[SAMPLES]).hexdigest() for of in (measured, files))
    files[RUN] = files[RUN].replace(was.encode(), public.encode())
    raw = RawRun.of(f"runs/{folder.name}", files)
    for name, data in files.items():
        write_text(folder / name, data.decode())
    write_text(folder / "report.html", render(raw.run, raw.samples))
    return raw


def write_report(
    folder: Path, report: Replication, key: PrivateKey | None, owner: Owner | None = None
) -> bytes:
    """Write `replication.json`, its page, and its signature; returns the report's bytes.

    The runs were made public before; what is said of this installation is here.
    """
    plain = to_json(report)
    plain["left_out"] = _public(plain["left_out"], owner)
    for run in plain["runs"]:
        run["notes"] = _public(run["notes"], owner)
    data = canonical(plain)
    plain = parse_object(data, REPORT, MAX_BYTES)
    error = first_error(plain, SCHEMA)
    if error is not None:
        raise MalformedRecordError(f"{REPORT}: not valid against {SCHEMA}: {error}")
    write_text(folder / PAGE, replication_html(plain))
    write_text(folder / REPORT, data.decode())
    if key is not None:
        write_text(folder / SIGNATURE, sign(key, data, REPORT).decode())
    return data


def _public(plain: Any, owner: Owner | None) -> Any:
    return json.loads(redact(json.dumps(plain).encode(), owner=owner).data)
