"""The runs of a snapshot: their files as bytes, and what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from firstlight.records import Case, CaseSummary, Plan, Run, Sample
from firstlight.snapshot.layout import LIMITS, PLAN, RUN, SAMPLES, Limits
from firstlight.snapshot.opening import parse_plan, parse_run, parse_samples


@dataclass(frozen=True)
class RawRun:
    """One run: `files` are plan.json, samples.jsonl and run.json as they are published."""

    folder: str  # runs/001
    plan: Plan
    samples: tuple[Sample, ...]
    run: Run
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, folder: str, files: Mapping[str, bytes], limits: Limits = LIMITS) -> RawRun:
        """Parsed from bytes; raises `UnusableSnapshotError` with the file's name."""
        return cls(
            folder=folder,
            plan=parse_plan(files[PLAN], f"{folder}/{PLAN}", limits),
            samples=tuple(parse_samples(files[SAMPLES], f"{folder}/{SAMPLES}", limits)),
            run=parse_run(files[RUN], f"{folder}/{RUN}", limits),
            files={name: files[name] for name in (PLAN, SAMPLES, RUN)},
        )

    @property
    def number(self) -> str:
        """'001'."""
        return self.folder.rsplit("/", 1)[-1]

    @cached_property
    def planned(self) -> Mapping[str, Case]:
        """The planned cases by id."""
        return {case.id: case for case in self.plan.cases}

    @cached_property
    def by_case(self) -> Mapping[str, Sequence[Sample]]:
        """The samples of every case, in the order of the run."""
        found: dict[str, list[Sample]] = {case.case: [] for case in self.run.cases}
        for sample in self.samples:
            found.setdefault(sample.case, []).append(sample)
        return found

    def digest(self, name: str) -> str:
        """SHA-256 of a file as it is published."""
        return hashlib.sha256(self.files[name]).hexdigest()


def timed(samples: Sequence[Sample]) -> list[Sample]:
    """The processes that were timed and gave a time."""
    return [s for s in samples if s.kind == "timed" and s.cold is not None]


def has_number(case: CaseSummary) -> bool:
    """Whether the run gives a time for the case."""
    return case.cold_seconds is not None


def programs_of(plan: Plan) -> dict[str, str]:
    """{path: SHA-256} of the users' own programs."""
    return dict(plan.fingerprint.get("files") or {})
