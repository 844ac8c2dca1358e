"""What is going to be measured: `plan.json`, decided once and written before the first process."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PLAN_SCHEMA = "firstlight.plan"


@dataclass(frozen=True)
class Case:
    """One workload at one size with one backend under one cache policy."""

    id: str
    workload: str
    size: str
    backend: str
    cache: str
    title: str
    adapter: str
    program: str
    reference: str | None
    parameters: Mapping[str, Any]
    tolerance: float
    seed: int | None
    compiled: bool
    cache_kind: str | None
    environment: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    skipped: str | None = None  # why it cannot run here
    note: str | None = None


@dataclass(frozen=True)
class Settings:
    """How much is sampled."""

    processes: int
    warm_calls: int  # at most, in one process
    warm_calls_least: int
    warm_seconds: float  # at most, unless the least number of calls takes longer
    batches: int
    batch_seconds: float
    timeout_seconds: float
    affinity: tuple[int, ...] | None
    seed: int  # of the run order


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Enough to finish a run, or to repeat it. The order of the fields is that of the file."""

    schema: str = PLAN_SCHEMA
    schema_version: int = 1
    created_at: str
    target: str
    harness: Mapping[str, Any]
    host: Mapping[str, Any]
    warnings: tuple[str, ...]
    #: What must not change when a run is resumed. Empty: one side of a gate, resumed through it.
    fingerprint: Mapping[str, Any]
    settings: Settings
    cases: tuple[Case, ...]


def rounds(cases: Sequence[Case], processes: int, seed: int) -> list[tuple[Case, int]]:
    """(case, process number) in run order: every round has each case once, shuffled anew.

    Drift of the machine then falls on all cases alike instead of on the one that ran last.
    """
    shuffle = random.Random(seed).shuffle
    order: list[tuple[Case, int]] = []
    for index in range(processes):
        block = [(case, index) for case in cases]
        shuffle(block)
        order += block
    return order


def jobs(cases: Sequence[Case], settings: Settings) -> list[tuple[Case, str, int]]:
    """Every process of a run that has these cases: (case, kind, number), in run order."""
    able = [case for case in cases if case.skipped is None]
    checks = [(case, "check", 0) for case, _ in rounds(able, 1, settings.seed - 1)]
    primes = [(case, "prime", 0) for case, _, _ in checks if case.cache == "warm"]
    timed = rounds(able, settings.processes, settings.seed)
    return checks + primes + [(case, "timed", index) for case, index in timed]


def slug(case_id: str) -> str:
    """A file name that no other case has, on any file system."""
    readable = "".join(c if c.isascii() and c.isalnum() else "-" for c in case_id)[:60]
    return f"{readable}-{hashlib.sha256(case_id.encode()).hexdigest()[:12]}"
