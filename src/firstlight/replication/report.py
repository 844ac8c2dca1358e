"""`replication.json`: what was repeated, and with which result.

DIR/replication.json    the report, in canonical form
DIR/replication.html    the same as a page
DIR/signature.json      the signature over replication.json, if it was signed
DIR/runs/001/…          what was measured here, as `firstlight run` writes it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from firstlight.compare.differences import Difference
from firstlight.records import Correctness, Estimate, JsonObject
from firstlight.statistics.effects import Effect

REPORT, PAGE, SIGNATURE = "replication.json", "replication.html", "signature.json"
SCHEMA = "replication-1.schema.json"
MAX_BYTES = 64 << 20
ALPHA = 0.05
VERDICTS = ("agrees", "differs", "undecided", "not comparable")


class Reason(StrEnum):
    """The reason for a verdict on a quantity, if it does not agree."""

    BEYOND_DRIFT = "beyond drift"  # and significant: it differs
    PARTLY_BEYOND_DRIFT = "partly beyond drift"
    NOT_SIGNIFICANT = "not significant"  # beyond, but p is too large after Holm's correction
    NEVER_SIGNIFICANT = "never significant"  # too few values for so many comparisons
    NO_INTERVAL = "no interval"  # too few values for an interval of 95 %
    TWO_SPEEDS = "two speeds"  # the published processes differ too much among themselves


@dataclass(frozen=True)
class Delta:
    """One quantity of one case, published and here."""

    quantity: str
    judged: bool  # False if it is shown, but not part of the verdict
    published: Estimate
    here: Estimate
    effect: Effect  # how many times as long it takes here
    p_adjusted: float
    verdict: str  # one of VERDICTS
    reason: Reason | None = None


@dataclass(frozen=True)
class CaseReplication:
    run: str
    case: str
    verdict: str  # one of VERDICTS
    differences: tuple[Difference, ...]  # what forbids comparing its times
    correctness_published: Correctness | None
    correctness_here: Correctness | None
    status_here: str
    failure_here: str | None  # what went wrong, if the status is not ok
    deltas: tuple[Delta, ...]

    @property
    def comparable(self) -> bool:
        return self.status_here == "ok" and not self.differences


@dataclass(frozen=True)
class RatioReplication:
    """How many times as long one case takes as another of the same run, published and here."""

    run: str
    case: str
    against: str
    quantity: str
    published: Effect
    here: Effect
    effect: Effect  # the ratio here over the published one
    p_adjusted: float
    order: str  # same, reversed or undecided: which of both is the slower one
    verdict: str
    reason: Reason | None = None


@dataclass(frozen=True)
class RunReplication:
    """A published run, its repetition, and how their environments differ."""

    published_folder: str
    published_id: str
    published_samples_sha256: str | None
    folder: str
    id: str
    samples_sha256: str | None
    machine_published: str
    machine_here: str
    state_published: JsonObject  # load, cpu_busy_ratio, warnings
    state_here: JsonObject
    environment: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]  # settings that could not be kept


@dataclass(frozen=True)
class LeftOut:
    run: str
    case: str
    reason: str


@dataclass(frozen=True)
class Replication:
    snapshot: JsonObject  # id, title, signature as verified here, signer
    created_at: str
    finished_at: str
    harness: JsonObject
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
        """0: every case agrees; 1: one differs; 3: none differs, but not all agree."""
        if self.verdicts["differs"]:
            return 1
        return 0 if self.verdicts["agrees"] == sum(self.verdicts.values()) else 3

    def totals(self) -> str:
        """'3 agrees, 1 differs, 2 not measured'."""
        counts = {**self.verdicts, "not measured": len(self.left_out)}
        return ", ".join(f"{number} {what}" for what, number in counts.items() if number)


def verdict_counts(cases: Sequence[CaseReplication]) -> dict[str, int]:
    """{'agrees': 3, …}, including verdicts that no case has."""
    return {verdict: sum(c.verdict == verdict for c in cases) for verdict in VERDICTS}
