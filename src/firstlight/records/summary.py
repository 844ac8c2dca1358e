"""The summary of a run (`run.json`), computed from plan and samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from firstlight.records.samples import CacheProof, Correctness, JsonObject

SCHEMA_VERSION = 1
#: If other programs use more than this share of the CPU when a run begins, its numbers are noisier.
NOISY_SHARE = 0.1
#: Environment variables with such names are not recorded, because records are published.
SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|CREDENTIAL|AUTH(?!OR(?!I))|COOKIE|PRIVATE|DSN$|CONN\w*STR",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Protocol:
    """Everything that must be equal for two numbers to be comparable."""

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
    seed: int | None  # null: the program chooses its own
    environment: Mapping[str, str]  # set by the harness for this case
    bytecode: str = "warm, like the page cache: a checking process ran before"


@dataclass(frozen=True)
class Estimate:
    """A median with an interval that contains the true median with probability `confidence`."""

    median: float
    low: float
    high: float
    n: int
    confidence: float


@dataclass(frozen=True)
class WarmEstimate(Estimate):
    """The median over processes of their steady-state levels, with the class of the warm-up."""

    steady_class: str = field(default="flat", metadata={"json": "class"})


@dataclass(frozen=True)
class BreakEven:
    """The number of calls after which a compiled case has cost less in total than uncompiled ones.

    `calls`, `low` and `high` are counts or "never". They refer to `against`, the backend that is
    overtaken last; `by_backend` has the numbers for each.
    """

    calls: int | str
    low: int | str
    high: int | str
    confidence: float
    against: str
    by_backend: Mapping[str, JsonObject] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseSummary:
    """The summary of one case, as `firstlight show --json` prints it."""

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
    warm_class: str | None = None  # also set when `warm_call_seconds` is null
    warm_reason: str | None = None  # why `warm_call_seconds` is null
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
    note: str | None = None  # a caveat of the workload

    def without_numbers(self) -> CaseSummary:
        """The part that may be shown of a failed case: its name, protocol and error."""
        kept = ("case", "workload", "size", "backend", "cache", "status", "reason", "protocol")
        return CaseSummary(**{n: getattr(self, n) for n in (*kept, "stderr_tail", "note")})


@dataclass(frozen=True)
class Run:
    """The contents of `run.json`."""

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
    """The share of the CPU that other programs used when a run began; None up to `NOISY_SHARE`."""
    busy = host.get("cpu_busy_ratio")
    if isinstance(busy, bool) or not isinstance(busy, (int, float)) or not busy > NOISY_SHARE:
        return None
    return float(busy)
