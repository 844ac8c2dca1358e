"""A synthetic run, with everything that a report must be able to show.

Values come from a seeded generator of the standard library, so a page made from them is the same
every time. The summaries are made here, independently of `firstlight.statistics`.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firstlight.records import (
    PHASES,
    BreakEven,
    CacheProof,
    CaseSummary,
    ColdStart,
    Correctness,
    Estimate,
    MemoryUse,
    Protocol,
    Run,
    Sample,
    WarmCalls,
    WarmEstimate,
)

#: Seconds of each phase; None where the framework does not have it.
PROGRAMS: Mapping[str, Mapping[str, float | None]] = {
    "numpy": dict(zip(PHASES, (0.018, 0.082, None, 0.012, None, None, None, 0.004), strict=True)),
    "jax-eager": dict(zip(PHASES, (0.018, 0.41, 0.06, 0.05, None, None, 0.31, 0.05), strict=True)),
    "jax-jit": dict(zip(PHASES, (0.018, 0.41, 0.06, 0.05, 0.09, 0.05, 0.48, 0.01), strict=True)),
    "torch-eager": dict(
        zip(PHASES, (0.018, 1.25, None, 0.03, None, None, None, 0.02), strict=True)
    ),
    "torch-compile": dict(zip(PHASES, (0.018, 1.25, None, 0.03, 1.9, 0.7, 5.4, 0.06), strict=True)),
}
WARM = {
    "numpy": 2.4e-3,
    "jax-eager": 3.1e-3,
    "jax-jit": 4.1e-4,
    "torch-eager": 1.3e-3,
    "torch-compile": 5.2e-4,
}


HOST: Mapping[str, Any] = {
    "cpu": {"model": "Made-up CPU @ 3.0 GHz", "usable_cores": 8, "frequency_governor": None},
    "container": {"cpu_quota": None, "memory_limit_bytes": None},
    "memory_bytes": 33_554_432_000,
    "gpus": [],
    "os": {"system": "Linux", "release": "6.1", "distribution": "Debian GNU/Linux 12"},
    "python": {"version": "3.11.9", "implementation": "CPython"},
    "packages": {"jax": "0.10.2", "jaxlib": "0.10.2", "numpy": "2.4.6", "torch": "2.13.0"},
    "environment": {"OMP_NUM_THREADS": "8"},
    "load": [0.1123046875, 0.2, 0.3],
}


@dataclass(frozen=True)
class Plan:
    """A case to generate."""

    workload: str
    size: str
    backend: str
    cache: str = "none"
    speed: float = 1.0  # factor on the warm call
    processes: int = 30
    calls: int = 120
    changes: Mapping[str, Any] = field(default_factory=dict)  # fields of the summary
    total: Callable[[random.Random, int], float] | None = None  # extra factor of a process
    drift: Callable[[int], float] = lambda call: 1.0  # factor on a call, by its number


def protocol(plan: Plan) -> Protocol:
    """A plausible protocol, with the words that the harness uses."""
    jax = plan.backend.startswith("jax")
    sync = "jax.block_until_ready on every array of the result" if jax else "none needed: it waits"
    return Protocol(
        cache=plan.cache,
        parameters={"batch": 64, "width": 256},
        data=({"shape": [64, 256], "dtype": "float32", "layout": "C", "device": "host"},),
        data_bytes=65536,
        cold_process="fresh: one process a sample, from spawn to the first synchronised result",
        cold_window=PHASES,
        warm_process="persistent: the same process goes on after its first result",
        warm_window="the call and its synchronisation, arguments in place",
        warm_up="no call is dropped by rule: the steady part is found by change points",
        sync=sync,
        threads={"cpu": 8},
        precision={"matmul": "highest" if jax else "ieee"},
        seed=7,
        environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )


def make_samples(plan: Plan, seed: int, order: int, stride: int) -> list[Sample]:
    """The timed processes of a case, `stride` places apart in the run."""
    rng = random.Random(seed)
    phases = dict(PROGRAMS.get(plan.backend, PROGRAMS["jax-jit"]))
    if plan.cache == "warm" and phases["compile"] is not None:
        phases["compile"] = phases["compile"] * 0.12
    found = []
    for index in range(plan.processes):
        factor = rng.lognormvariate(0.0, 0.02) * (plan.total(rng, index) if plan.total else 1.0)
        own = {k: None if v is None else v * factor for k, v in phases.items()}
        rest = 0.006 * factor
        attributed = sum(v for v in own.values() if v is not None)
        found.append(
            Sample(
                case=case_id(plan),
                kind="timed",
                index=index,
                order=order + index * stride,
                started_at="2026-03-01T09:15:00+00:00",
                status="ok",
                cold=ColdStart(attributed + rest, own, rest),
                warm=_calls(plan, rng),
                memory=_memory(plan),
            )
        )
    return found


def _calls(plan: Plan, rng: random.Random) -> WarmCalls:
    base = WARM.get(plan.backend, 1e-3) * plan.speed * rng.lognormvariate(0.0, 0.01)
    calls = tuple(
        base
        * plan.drift(i + 1)
        * rng.lognormvariate(0.0, 0.015)
        * (3.0 if rng.random() < 0.004 else 1.0)
        for i in range(plan.calls)
    )
    return WarmCalls(calls, 50, tuple(50 * base * 0.97 for _ in range(5)))


def _memory(plan: Plan) -> MemoryUse:
    steps = (11, 160 if plan.backend.startswith("torch") else 60, 20, 9, 14, 6, 95, 18)
    reached, peaks = 0, {}
    for phase, step in zip(PHASES, steps, strict=True):
        has = PROGRAMS.get(plan.backend, PROGRAMS["jax-jit"])[phase] is not None
        reached += step * 2**20 if has else 0
        peaks[phase] = reached if has else None
    compiled = plan.backend == "jax-jit"
    estimate = {"argument": 65536, "output": 4096, "temp": 262144, "code": 18000}
    return MemoryUse(peaks, None, estimate if compiled else None)


def median_interval(values: Sequence[float]) -> Estimate:
    """Order statistics nearest to 95 %, by the normal approximation: good enough to draw."""
    ordered = sorted(values)
    n = len(ordered)
    k = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return Estimate(statistics.median(ordered), ordered[k], ordered[n - 1 - k], n, 0.957)


def case_id(plan: Plan) -> str:
    return f"{plan.workload}[{plan.size}]/{plan.backend}/{plan.cache}"


def summarise(plan: Plan, samples: Sequence[Sample]) -> CaseSummary:
    """The summary of a case, before the break-even that needs its rivals."""
    cold = [s.cold for s in samples if s.cold is not None]
    steady = [statistics.median(s.warm.call_seconds[20:]) for s in samples if s.warm is not None]
    memory = samples[0].memory
    assert memory is not None
    phases = {
        p: None
        if cold[0].phases_seconds[p] is None
        else statistics.median([c.phases_seconds[p] or 0.0 for c in cold])
        for p in PHASES
    }
    warm = median_interval(steady)
    cached = plan.cache != "none"
    compiled = PROGRAMS.get(plan.backend, PROGRAMS["jax-jit"])["compile"] is not None
    hits = 3 if plan.cache == "warm" else 0
    proof = CacheProof(
        policy=plan.cache,
        proven=True,
        reason=None if cached else "no cache was asked for",
        entries_before=3 if hits else 0,
        entries_after=3 if cached else 0,
        requests=3 if cached else None,
        hits=hits if cached else None,
    )
    summary = CaseSummary(
        case=case_id(plan),
        workload=plan.workload,
        size=plan.size,
        backend=plan.backend,
        cache=plan.cache,
        status="ok",
        reason=None,
        protocol=protocol(plan),
        correctness=Correctness(True, 3.2e-7, 1e-5, "float64 reference"),
        cache_proof=proof,
        cold_seconds=median_interval([c.total_seconds for c in cold]),
        phases_seconds=phases,
        unattributed_seconds=statistics.median([c.unattributed_seconds for c in cold]),
        warm_call_seconds=WarmEstimate(warm.median, warm.low, warm.high, warm.n, 0.957, "flat"),
        throughput_calls_per_second=median_interval([1 / (0.97 * w) for w in steady]),
        batch_calls=50,
        peak_host_bytes=max(v for v in memory.peak_host_bytes.values() if v is not None),
        peak_host_bytes_by_phase=memory.peak_host_bytes,
        compiler_bytes=memory.compiler_bytes,
        counts={"traces": 1, "lowerings": 1, "compiles": 3} if compiled else {"compiles": None},
        processes_ok=plan.processes,
        processes_planned=plan.processes,
    )
    return replace(summary, **plan.changes)


def with_break_even(case: CaseSummary, cases: Sequence[CaseSummary]) -> CaseSummary:
    """The case, with its break-even against the uncompiled ones if it is compiled."""
    if case.backend not in ("jax-jit", "torch-compile") or case.break_even_calls is not None:
        return case
    rivals = {
        c.backend: c
        for c in cases
        if c.workload == case.workload and c.size == case.size and c.status == "ok"
        if c.backend in ("numpy", "torch-eager", "jax-eager")
    }
    if case.status not in ("ok", "unproven") or not rivals:
        return case
    by_backend = {name: _crossing(case, rival) for name, rival in rivals.items()}

    def calls(name: str) -> float:
        count = by_backend[name]["calls"]
        return math.inf if isinstance(count, str) else float(count)

    hardest = max(by_backend, key=calls)
    even = BreakEven(**by_backend[hardest], against=hardest, by_backend=by_backend)
    return replace(case, break_even_calls=even)


def _crossing(one: CaseSummary, other: CaseSummary) -> dict[str, Any]:
    assert one.cold_seconds and other.cold_seconds
    assert one.warm_call_seconds and other.warm_call_seconds
    c, w, oc, ow = (
        one.cold_seconds, one.warm_call_seconds, other.cold_seconds, other.warm_call_seconds,
    )  # fmt: skip

    def calls(cold: float, warm: float, other_cold: float, other_warm: float) -> int | str:
        if cold < other_cold:
            return 1
        if warm >= other_warm:
            return "never"
        return 2 + math.floor((cold - other_cold) / (other_warm - warm))

    return {
        "calls": calls(c.median, w.median, oc.median, ow.median),
        "low": calls(c.low, w.low, oc.high, ow.high),
        "high": calls(c.high, w.high, oc.low, ow.low),
        "confidence": 0.95,
    }


def make_run(plans: Sequence[Plan], **changes: Any) -> tuple[Run, list[Sample]]:
    """The run of these plans, in rounds, with its samples in run order."""
    samples: list[Sample] = []
    cases: list[CaseSummary] = []
    for number, plan in enumerate(plans):
        own = make_samples(plan, seed=number, order=number, stride=len(plans))
        cases.append(summarise(plan, own))
        samples += own
    finished = tuple(with_break_even(case, cases) for case in cases)
    run = Run(
        id="2026-03-01T09-15-00_standard",
        created_at="2026-03-01T09:15:00+00:00",
        finished_at="2026-03-01T10:02:31+00:00",
        complete=True,
        harness={"version": "0.1.0", "commit": {"id": "0123456789abcdef01234567", "changed": True}},
        settings={"processes": 30, "warm_calls": 120, "timeout_seconds": 300.0, "affinity": None},
        host=HOST,
        warnings=("the load was 2.3 before process 41: other programs ran on this machine",),
        cases=finished,
    )
    return replace(run, **changes), sorted(samples, key=lambda s: s.order)


def bimodal(rng: random.Random, index: int) -> float:
    return 1.42 if rng.random() < 0.35 else 1.0


def drifting(rng: random.Random, index: int) -> float:
    return 1.0 + 0.004 * index


TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 88, in main
    result = step(*arguments)
  File "programs/ode_gradient.py", line 61, in step
    return solve(y0, ts)
ValueError: incompatible shapes <(64, 3)> & <(3, 64)>"""


def rich() -> tuple[Run, list[Sample]]:
    """Three workloads with every kind of problem."""
    settling: Callable[[int], float] = lambda call: 1 + 2.5 * math.exp(-call / 4)  # noqa: E731
    no_numbers: dict[str, Any] = dict.fromkeys(
        ("cold_seconds", "warm_call_seconds", "throughput_calls_per_second", "unattributed_seconds",
         "peak_host_bytes", "correctness", "cache_proof"), None
    ) | {"phases_seconds": {}, "peak_host_bytes_by_phase": {}, "counts": {}}  # fmt: skip
    mlp, ode, small = "mlp_train", "ode_gradient", "matmul"
    plans = [
        Plan(mlp, "small", "numpy", speed=3),
        Plan(mlp, "small", "jax-eager", speed=2.2, total=drifting),
        Plan(mlp, "small", "jax-jit", total=bimodal),
        Plan(mlp, "small", "jax-jit", "cold"),
        Plan(mlp, "small", "jax-jit", "warm"),
        Plan(mlp, "small", "torch-eager"),
        Plan(mlp, "small", "torch-compile", speed=0.7, drift=settling),
        Plan(ode, "medium", "numpy", speed=9),
        Plan(ode, "medium", "jax-eager", speed=20, processes=12, changes={
            "status": "failed", "reason": "the program raised ValueError", "stderr_tail": TRACEBACK,
            "processes_ok": 0,
        }),
        Plan(ode, "medium", "jax-jit", speed=0.5),
        Plan(ode, "medium", "jax-jit", "warm", speed=0.5, changes={
            "status": "unproven", "reason": "the cache was asked 3 times and hit 1 time",
            "cache_proof": CacheProof("warm", False, "hit 1 of 3", 3, 5, 3, 1),
        }),
        Plan(ode, "medium", "torch-eager", speed=14, drift=lambda call: 1 + 0.002 * call),
        Plan(ode, "medium", "torch-compile", changes=no_numbers | {
            "status": "timeout", "reason": "the process did not end within the time limit (300 s)",
            "stderr_tail": "compiling graph 17 of 40 ...", "processes_ok": 0,
        }),
        Plan(small, "tiny", "numpy", speed=0.004),
        Plan(small, "tiny", "jax-jit", speed=0.03),
        Plan(small, "tiny", "torch-eager", changes=no_numbers | {
            "status": "skipped", "reason": "torch is not installed", "protocol": None,
            "processes_ok": 0, "processes_planned": 0,
        }),
    ]  # fmt: skip
    run, samples = make_run(plans)
    cases = [_class(c, "warmup") if c.backend == "torch-compile" else c for c in run.cases]
    cases = [_class(c, "slowdown") if c.case.startswith(f"{ode}[medium]/torch-eager") else c
             for c in cases]  # fmt: skip
    note = "the gradient is taken through 200 steps of the solver"
    cases = [replace(c, note=note) if c.workload == ode else c for c in cases]
    silent = {c.case for c in cases if c.cold_seconds is None}
    return replace(run, cases=tuple(cases)), [s for s in samples if s.case not in silent]


def _class(case: CaseSummary, steady_class: str) -> CaseSummary:
    warm = case.warm_call_seconds
    return replace(case, warm_call_seconds=warm and replace(warm, steady_class=steady_class))
