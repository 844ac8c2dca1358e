"""What one measured process gave: a line of `samples.jsonl`. What was not measured is null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JsonObject = Mapping[str, Any]  # as `json` reads it
#: The phases of a cold start, in the order in which they happen. `unattributed` completes them.
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

#: How often a gate repeats a broken process, on both sides. A benchmark that breaks in a share q of
#: the processes of either side is then taken for broken by the head with a probability of
#: q³(1 - q)⁴ per broken process, which is 0.01 % for q = 5 % and 0.8 % at the worst q.
REPEATS = 3


@dataclass(frozen=True)
class Correctness:
    """How far the result is from an independent float64 reference."""

    passed: bool
    max_relative_error: float | None  # max|x - ref| / max|ref|, the worst of the outputs
    tolerance: float | None
    reference: str  # where the reference comes from, or why there is none


@dataclass(frozen=True)
class CacheProof:
    """What the persistent cache held and did in one process, and whether the label is true."""

    policy: str
    proven: bool
    reason: str | None  # why it is not proven, or why there was nothing to prove
    entries_before: int | None
    entries_after: int | None
    requests: int | None
    hits: int | None


@dataclass(frozen=True)
class ColdStart:
    """One process from spawn to its first synchronised result, by the parent's clock."""

    total_seconds: float
    phases_seconds: Mapping[str, float | None]
    unattributed_seconds: float


@dataclass(frozen=True)
class WarmCalls:
    """What the same process did after its first result, every call in order."""

    call_seconds: tuple[float, ...]  # synchronised after every call
    batch_calls: int  # calls between two synchronisations of the throughput part
    batch_seconds: tuple[float, ...]
    #: In a gate: calls of each window, in turns with the process of the other side.
    turn_calls: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryUse:
    """Bytes. Host peaks are VmHWM at the end of each phase; null if not reported."""

    peak_host_bytes: Mapping[str, int | None]
    peak_device_bytes: int | None
    compiler_bytes: Mapping[str, int] | None  # the compiler's own estimate, from the check process


@dataclass(frozen=True)
class Sample:
    """One process: the unit of everything that is published."""

    case: str
    kind: str  # check, prime or timed
    index: int  # number of the process within its case and kind
    order: int  # place in the run
    started_at: str
    #: Only `ok` has a timing that may be quoted. `failed`: the result does not agree with the
    #: reference, or the program raised; `unproven`: the cache was not in the declared state;
    #: `crashed`: ended by a signal, or without a report; `timeout`; `out-of-memory`. A case may
    #: also be `skipped` (its framework is missing) or `incomplete` (interrupted).
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
    facts: JsonObject = field(default_factory=dict)  # what the worker saw of itself
