"""What the generator saw as a run: every round is a process of one case.

The cold number of a round is its first answer, on a new connection; the warm calls are all answers
that follow. So `show`, `compare`, `publish` and the report read a load as they read any run.
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

_NO_CACHE = "a running server is asked; it has its own cache"
_NO_REFERENCE = "the answers were not compared with a reference, only their status"


def plan_for(target: Target, loop: Loop, rounds: int) -> Plan:
    """The plan of a load."""
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
    """The request that shows whether there is anything to measure; holds the rest's protocol."""
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
    """One round: its first answer, then the load."""
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
    """As the clock counts them."""
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
    reason = f"no answer 2xx ({codes or 'none at all'})"
    return Sample(case, kind, index, order, started_at, "failed", reason, facts=facts)
