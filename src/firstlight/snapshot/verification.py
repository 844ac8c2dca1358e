"""The result of verifying a snapshot: what holds, what does not, and what was not checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

#: At most so many findings of one kind are listed, and how many more there are.
_MAX_FINDINGS = 20


class Outcome(StrEnum):
    """That the files are valid says nothing about how good the numbers are."""

    VALID = "valid"
    PARTLY_CHECKED = "valid as far as checked"
    NOT_VALID = "not valid"


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    check: str  # identity, files, time, signature, schemas, samples, labels, derived
    message: str


@dataclass(frozen=True)
class Verification:
    location: str
    id: str
    signature: str  # trusted, expired, revoked, valid (key not known), none, bad, not checked
    signer: str | None  # id of the key, where the signature is good
    signer_name: str | None  # what this user calls it, where it is trusted
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]  # what cannot be known from these files
    skipped: tuple[str, ...] = ()  # what could be, and was not checked here
    unchecked_files: tuple[str, ...] = ()  # of which only the hash was checked
    loads: tuple[str, ...] = ()  # runs that other programs disturbed, in words
    proven_time: str | None = None  # by when it existed, by an authority that this user trusts

    @property
    def outcome(self) -> Outcome:
        if self.findings:
            return Outcome.NOT_VALID
        return Outcome.PARTLY_CHECKED if self.skipped else Outcome.VALID

    @property
    def exit_code(self) -> int:
        """0 everything was checked and holds, 1 something does not, 3 not all could be checked."""
        return {Outcome.VALID: 0, Outcome.NOT_VALID: 1, Outcome.PARTLY_CHECKED: 3}[self.outcome]


@dataclass
class Record:
    """What is noted while a snapshot is verified."""

    checked: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_checked: dict[str, None] = field(default_factory=dict)  # each said once, in order
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
        """Note what holds, unless something of this check does not."""
        if self.holds(check):
            self.checked.append(message)

    def unknown(self, message: str) -> None:
        """Something that these files cannot show."""
        self.not_checked[message] = None

    def skip(self, message: str, files: Sequence[str] = ()) -> None:
        """Something that could be checked, and is not here."""
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
