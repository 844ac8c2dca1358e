"""The record of one measured process: a line of `samples.jsonl`. What was not measured is null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JsonObject = Mapping[str, Any]  # as `json` reads it
#: The phases of a cold start in order. With `unattributed` they add up to the total.
PHASES = (
    "interpreter",
    "import",
    "backend_init",
    "setup",
    "trace",
    "lower",
    "compile",
    "first_execute",
)

#: How often a gate repeats a broken process, on both sides. If a benchmark breaks in a share q of
#: the processes of either side, the head is wrongly blamed with a probability of q³(1 - q)⁴ per
#: broken process: 0.01 % for q = 5 %, 0.8 % for the worst q.
REPEATS = 3


@dataclass(frozen=True)
class Correctness:
    """The error of the result against an independent float64 reference."""

    passed: bool
    max_relative_error: float | None  # max|x - ref| / max|ref|, of the worst output
    tolerance: float | None
    reference: str  # its source, or why there is none


@dataclass(frozen=True)
class CacheProof:
    """The persistent cache's contents and use in one process, and whether they prove the label."""

    policy: str
    proven: bool
    reason: str | None  # why it is not proven, or why no proof is needed
    entries_before: int | None
    entries_after: int | None
    requests: int | None
    hits: int | None


@dataclass(frozen=True)
class ColdStart:
    """The time from spawn to the first synchronised result, by the parent's clock."""

    total_seconds: float
    phases_seconds: Mapping[str, float | None]
    unattributed_seconds: float


@dataclass(frozen=True)
class WarmCalls:
    """The calls of the same process after its first result, in order."""

    call_seconds: tuple[float, ...]  # synchronised after every call
    batch_calls: int  # calls per batch; synchronised after every batch
    batch_seconds: tuple[float, ...]
    #: In a gate: the number of calls in each of the windows that alternate with the other side.
    turn_calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryUse:
    """Memory in bytes. Host peaks are VmHWM at the end of each phase; null if not reported."""

    peak_host_bytes: Mapping[str, int | None]
    peak_device_bytes: int | None
    compiler_bytes: Mapping[str, int] | None  # the compiler's own estimate, from the check process


@dataclass(frozen=True)
class Sample:
    """One process, the unit of all statistics."""

    case: str
    kind: str  # check, prime or timed
    index: int  # number of the process within its case and kind
    order: int  # position in the run
    started_at: str
    #: Only the times of `ok` may be quoted. `failed`: the result does not agree with the reference,
    #: or the program raised; `unproven`: the cache was not in the declared state; `crashed`: ended
    #: by a signal, or without a report; `timeout`; `out-of-memory`. A case may also be `skipped`
    #: (its framework is missing) or `incomplete` (interrupted).
    status: str
    reason: str | None = None
    stderr_tail: str | None = None
    load_before: float | None = None
    cold: ColdStart | None = None
    warm: WarmCalls | None = None
    memory: MemoryUse | None = None
    cache: CacheProof | None = None
    correctness: Correctness | None = None
    counts: Mapping[str, int | None] = field(default_factory=dict)  # traces, lowerings, compiles
    facts: JsonObject = field(default_factory=dict)  # other observations of the worker
