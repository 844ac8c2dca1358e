"""The runs of a snapshot: their files as bytes, and what is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from firstlight.records import Case, CaseSummary, Plan, Run, Sample
from firstlight.snapshot.errors import UnusableSnapshotError
from firstlight.snapshot.layout import LIMITS, PLAN, RUN, SAMPLES, require_version
from firstlight.snapshot.strict_json import decoded, parse_object


@dataclass(frozen=True)
class RawRun:
    """One run: `files` are plan.json, samples.jsonl and run.json as they are published."""

    folder: str  # runs/001
    plan: Plan
    samples: tuple[Sample, ...]
    run: Run
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, folder: str, files: Mapping[str, bytes]) -> RawRun:
        """Parsed from bytes; raises `UnusableSnapshotError` with the file's name."""
        return cls(
            folder=folder,
            plan=parse_plan(files[PLAN], f"{folder}/{PLAN}"),
            samples=tuple(parse_samples(files[SAMPLES], f"{folder}/{SAMPLES}")),
            run=parse_run(files[RUN], f"{folder}/{RUN}"),
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


def parse_plan(data: bytes, name: str) -> Plan:
    """A `plan.json` that a stranger wrote."""
    plan = decoded(Plan, parse_object(data, name, LIMITS.json_bytes), name)
    if len({case.id for case in plan.cases}) != len(plan.cases):
        raise UnusableSnapshotError(f"{name}: a case is planned twice.")
    return plan


def parse_run(data: bytes, name: str) -> Run:
    """A `run.json` that a stranger wrote."""
    plain = parse_object(data, name, LIMITS.json_bytes)
    require_version(plain, "firstlight.run", name)
    return decoded(Run, plain, name)


def parse_samples(data: bytes, name: str) -> list[Sample]:
    """A `samples.jsonl` that a stranger wrote: every line whole."""
    if len(data) > LIMITS.samples_bytes:
        raise UnusableSnapshotError(f"{name}: more than {LIMITS.samples_bytes} bytes of samples.")
    if data and not data.endswith(b"\n"):
        raise UnusableSnapshotError(f"{name}: its last line is truncated.")
    samples = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"{name}: line {number}"
        samples.append(decoded(Sample, parse_object(line, where, LIMITS.line_bytes), where))
    return samples


def timed(samples: Sequence[Sample]) -> list[Sample]:
    """The processes that were timed and gave a time."""
    return [s for s in samples if s.kind == "timed" and s.cold is not None]


def has_number(case: CaseSummary) -> bool:
    """Whether the run gives a time for the case."""
    return case.cold_seconds is not None


def programs_of(plan: Plan) -> dict[str, str]:
    """{path: SHA-256} of the users' own programs."""
    return dict(plan.fingerprint.get("files") or {})
