"""The result of verifying a snapshot: what holds, what does not, what was not checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

_MAX_FINDINGS = 20  # listed per check; the others are counted


class Outcome(StrEnum):
    """Whether the files are valid; it says nothing about the quality of the numbers."""

    VALID = "valid"
    PARTLY_CHECKED = "valid as far as checked"
    NOT_VALID = "not valid"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong."""

    check: str  # identity, files, time, signature, schemas, samples, labels, derived
    message: str


@dataclass(frozen=True)
class Verification:
    location: str
    id: str
    signature: str  # trusted, expired, revoked, valid (key not known), none, bad, not checked
    signer: str | None  # id of the key, if the signature is valid
    signer_name: str | None  # the user's name for the key, if it is trusted
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]  # what these files cannot show
    skipped: tuple[str, ...] = ()  # what could be checked, but not here
    unchecked_files: tuple[str, ...] = ()  # files of which only the hash was checked
    loads: tuple[str, ...] = ()  # runs that other programs disturbed, in words
    proven_time: str | None = None  # when it existed, according to a trusted authority

    @property
    def outcome(self) -> Outcome:
        if self.findings:
            return Outcome.NOT_VALID
        return Outcome.PARTLY_CHECKED if self.skipped else Outcome.VALID

    @property
    def exit_code(self) -> int:
        """0: everything was checked and holds; 1: something does not; 3: something was skipped."""
        return {Outcome.VALID: 0, Outcome.NOT_VALID: 1, Outcome.PARTLY_CHECKED: 3}[self.outcome]


@dataclass
class Record:
    """Collects results while a snapshot is verified."""

    checked: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_checked: dict[str, None] = field(default_factory=dict)  # an ordered set
    skipped: dict[str, None] = field(default_factory=dict)
    unchecked_files: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    signature: str = "bad"
    signer: str | None = None
    signer_name: str | None = None
    proven_time: datetime | None = None

    def find(self, check: str, message: str) -> None:
        self.findings.append(Finding(check, message))

    def holds(self, check: str) -> bool:
        return not any(finding.check == check for finding in self.findings)

    def passed(self, check: str, message: str) -> None:
        """Note what holds, unless this check has a finding."""
        if self.holds(check):
            self.checked.append(message)

    def unknown(self, message: str) -> None:
        """Note what these files cannot show."""
        self.not_checked[message] = None

    def skip(self, message: str, files: Sequence[str] = ()) -> None:
        """Note what could be checked, but not here."""
        self.skipped[message] = None
        self.unchecked_files += files

    def result(self, location: str, snapshot_id: str) -> Verification:
        findings: list[Finding] = []
        for check, number in Counter(finding.check for finding in self.findings).items():
            findings += [f for f in self.findings if f.check == check][:_MAX_FINDINGS]
            if number > _MAX_FINDINGS:
                findings.append(Finding(check, f"{number - _MAX_FINDINGS} more of this kind"))
        return Verification(
            location, snapshot_id, self.signature, self.signer, self.signer_name,
            tuple(self.checked), tuple(findings), tuple(self.not_checked), tuple(self.skipped),
            tuple(self.unchecked_files), tuple(self.loads),
            self.proven_time.isoformat() if self.proven_time else None,
        )  # fmt: skip
