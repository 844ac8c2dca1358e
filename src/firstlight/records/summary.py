"""What a run says about its cases: `run.json`, made from plan and samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from firstlight.records.samples import CacheProof, Correctness, JsonObject

SCHEMA_VERSION = 1
#: Used by other programs when a run begins: from this share of the CPU on, numbers are noisier.
NOISY_SHARE = 0.1
#: What is recorded is published: a variable with such a name is not recorded.
SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|CREDENTIAL|AUTH(?!OR(?!I))|COOKIE|PRIVATE|DSN$|CONN\w*STR",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Protocol:
    """Everything that must be equal before two numbers may be compared."""

    cache: str
    parameters: JsonObject
    data: tuple[JsonObject, ...]  # shape, dtype, layout, device of every input
    data_bytes: int
    cold_process: str
    cold_window: tuple[str, ...]
    warm_process: str
    warm_window: str
    warm_up: str
    sync: str
    threads: JsonObject
    precision: JsonObject
    seed: int | None  # null: the program's own affair
    environment: Mapping[str, str]  # flags set by the harness for this case
    bytecode: str = "warm, like the page cache: a checking process ran before"


@dataclass(frozen=True)
class Estimate:
    """A median with an interval that contains the true one with probability `confidence`."""

    median: float
    low: float
    high: float
    n: int
    confidence: float


@dataclass(frozen=True)
class WarmEstimate(Estimate):
    """A steady-state median over processes, with the class of its warm-up."""

    steady_class: str = field(default="flat", metadata={"json": "class"})


@dataclass(frozen=True)
class BreakEven:
    """From how many calls on a compiled case has cost less in total than an uncompiled one.

    `calls`, `low` and `high` are counts or the word "never"; `against` is the backend that takes
    longest to be overtaken, and `by_backend` has them all.
    """

    calls: int | str
    low: int | str
    high: int | str
    confidence: float
    against: str
    by_backend: Mapping[str, JsonObject] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseSummary:
    """What `firstlight show --json` prints for a case."""

    case: str
    workload: str
    size: str
    backend: str
    cache: str
    status: str
    reason: str | None
    protocol: Protocol | None
    correctness: Correctness | None = None
    cache_proof: CacheProof | None = None
    cold_seconds: Estimate | None = None
    phases_seconds: Mapping[str, float | None] = field(default_factory=dict)
    unattributed_seconds: float | None = None
    warm_call_seconds: WarmEstimate | None = None
    warm_class: str | None = None  # also where there is no single number
    warm_reason: str | None = None  # why there is none
    throughput_calls_per_second: Estimate | None = None
    batch_calls: int | None = None
    peak_host_bytes: int | None = None
    peak_host_bytes_by_phase: Mapping[str, int | None] = field(default_factory=dict)
    peak_device_bytes: int | None = None
    compiler_bytes: Mapping[str, int] | None = None
    counts: Mapping[str, int | None] = field(default_factory=dict)
    break_even_calls: BreakEven | None = None
    processes_ok: int = 0
    processes_planned: int = 0
    stderr_tail: str | None = None
    note: str | None = None  # what a reader of this number must know, said by the workload

    def without_numbers(self) -> CaseSummary:
        """What may be shown of a case that failed: its name, protocol and what went wrong."""
        kept = ("case", "workload", "size", "backend", "cache", "status", "reason", "protocol")
        return CaseSummary(**{n: getattr(self, n) for n in (*kept, "stderr_tail", "note")})


@dataclass(frozen=True)
class Run:
    """A run directory's `run.json`."""

    id: str
    created_at: str
    finished_at: str | None
    complete: bool
    harness: JsonObject
    settings: JsonObject
    host: JsonObject
    warnings: tuple[str, ...]
    cases: tuple[CaseSummary, ...]
    samples_file: str = "samples.jsonl"
    samples_sha256: str | None = None
    schema: str = "firstlight.run"
    schema_version: int = SCHEMA_VERSION


def noisy_share(host: JsonObject) -> float | None:
    """Share of the CPU used by other programs when a run began; None if too small to mention."""
    busy = host.get("cpu_busy_ratio")
    if isinstance(busy, bool) or not isinstance(busy, (int, float)) or not busy > NOISY_SHARE:
        return None
    return float(busy)
