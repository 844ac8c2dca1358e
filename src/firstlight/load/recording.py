"""Records a load as a run: every round is one process of its case.

The cold time of a round is that of its first answer, on a new connection; the warm calls are all
further answers. `show`, `compare`, `publish` and the report then work as for any run.
"""

from __future__ import annotations

import hashlib
from typing import Any

from firstlight.load.generator import Loop, Seen
from firstlight.load.target import Target
from firstlight.measure.planning import plan_of
from firstlight.records import CONCURRENT, SERVER_ADAPTER, Case, Plan, Settings
from firstlight.records.samples import (
    PHASES,
    CacheProof,
    ColdStart,
    Correctness,
    JsonObject,
    MemoryUse,
    Sample,
    WarmCalls,
)

_NO_CACHE = "the running server has its own cache"
_NO_REFERENCE = "only the status of answers was checked, not their content"


def plan_for(target: Target, loop: Loop, rounds: int) -> Plan:
    kind = "closed" if loop.rate is None else f"{loop.rate:g} per second"
    name = target.path.strip("/").replace("/", "-") or "root"
    size = f"{loop.connections} connections"
    case = Case(
        id=f"load-{name}[{size}, {kind}]/http/none",
        workload=f"load-{name}",
        size=f"{size}, {kind}",
        backend="http",
        cache="none",
        title=f"Load on {target.path}",
        adapter=SERVER_ADAPTER,
        program=target.path,
        reference=None,
        parameters={
            "connections": loop.connections,
            "requests_per_second": loop.rate or "as answers come",
            "body_bytes": len(target.body),
        },
        tolerance=0.0,
        seed=None,
        compiled=False,
        cache_kind=None,
    )
    settings = Settings(
        processes=rounds,
        warm_calls=loop.max_requests,
        warm_calls_least=1,
        warm_seconds=loop.seconds,
        batches=1,
        batch_seconds=loop.seconds,
        timeout_seconds=2 * loop.seconds + 60.0,
        affinity=None,
        seed=0,
    )
    return plan_of(f"load-{name}", [case], settings)


def checked(plan: Plan, target: Target, loop: Loop, first: Seen, started_at: str) -> Sample:
    """The sample of the first request, which checks the target and records the protocol."""
    due = "when it was sent" if loop.rate is None else "when it was due, sent or not"
    facts = {
        "data": [
            {
                "shape": [len(target.body)],
                "dtype": "uint8",
                "layout": "the body of a request",
                "device": "host",
                "bytes": len(target.body),
            }
        ],
        "data_sha256": [hashlib.sha256(target.body).hexdigest()],
        "sync": "the whole answer has arrived",
        "threads": {"connections": loop.connections},
        "precision": {},
        "cold_process": "a running server: the first request of a round, on a new connection",
        "warm_process": "the same server, with all connections",
        "warm_window": f"from {due} to its whole answer",
    }
    if first.latencies:
        return _ok(plan.cases[0].id, "check", 0, 0, started_at, facts=facts)
    return _failed(plan.cases[0].id, "check", 0, 0, started_at, first, facts)


def timed(plan: Plan, index: int, first: Seen, load: Seen, started_at: str) -> Sample:
    """The sample of one round: its first answer, then the load."""
    case = plan.cases[0].id
    facts = {
        "statuses": {str(code): n for code, n in sorted(load.statuses.items())},
        "unsent": load.unsent,
        CONCURRENT: plan.cases[0].parameters["connections"],
    }
    order = index + 1
    if not first.latencies or not load.latencies:
        return _failed(case, "timed", index, order, started_at, load, facts)
    seconds = _nanoseconds(first.latencies[0])
    phases = {**dict.fromkeys(PHASES), "first_execute": seconds}
    answers, batch = len(load.latencies), _nanoseconds(load.seconds)
    return _ok(
        case,
        "timed",
        index,
        order,
        started_at,
        cold=ColdStart(seconds, phases, 0.0),
        warm=WarmCalls(tuple(map(_nanoseconds, load.latencies)), answers, (batch,)),
        memory=MemoryUse({}, None, None),
        facts=facts,
    )


def _nanoseconds(seconds: float) -> float:
    """Rounded to the clock's resolution, and positive."""
    return max(round(seconds, 9), 1e-9)


def _ok(case: str, kind: str, index: int, order: int, started_at: str, **more: Any) -> Sample:
    return Sample(
        case,
        kind,
        index,
        order,
        started_at,
        "ok",
        cache=CacheProof("none", True, _NO_CACHE, None, None, None, None),
        correctness=Correctness(True, None, None, _NO_REFERENCE),
        **more,
    )


def _failed(
    case: str, kind: str, index: int, order: int, started_at: str, seen: Seen, facts: JsonObject
) -> Sample:
    codes = ", ".join(f"{n} answers {code}" for code, n in sorted(seen.statuses.items()))
    reason = f"no 2xx answer ({codes or 'no answers'})"
    return Sample(case, kind, index, order, started_at, "failed", reason, facts=facts)
