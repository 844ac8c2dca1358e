"""Made-up run directories whose numbers follow from their samples.

Used by the tests of snapshots and by `benchmarks/snapshots.py`: a real run takes seconds, and these
must be made by the thousand.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from firstlight.measure.case_selection import SAMPLING
from firstlight.records import (
    PHASES,
    CacheProof,
    Case,
    ColdStart,
    Correctness,
    MemoryUse,
    Plan,
    Sample,
    Settings,
    WarmCalls,
    append_sample,
    write_json,
)
from firstlight.records import jobs as planned_jobs
from firstlight.snapshot.order_and_clock import busy_seconds
from firstlight.statistics.run_summaries import assemble

HOST: Mapping[str, Any] = {
    "cpu": {"model": "Made-up CPU", "usable_cores": 8, "frequency_governor": None},
    "container": {"cpu_quota": None, "memory_limit_bytes": None},
    "memory_bytes": 33_554_432_000,
    "memory_available_bytes": 30_000_000_000,
    "gpus": [],
    "os": {"system": "Linux", "release": "6.1", "distribution": "Debian GNU/Linux 12"},
    "python": {"version": "3.11.9", "implementation": "CPython"},
    "packages": {"jax": "0.10.2", "numpy": "2.4.6"},
    "lock": ["jax==0.10.2", "numpy==2.4.6"],
    "environment": {"OMP_NUM_THREADS": "8"},
    "commit": None,
    "load": [0.1, 0.2, 0.3],
    "cpu_busy_ratio": 0.01,
}
HARNESS = {"name": "firstlight", "version": "0.1.0", "commit": {"id": "01" * 20, "changed": False}}


def make_case(workload: str = "matmul", backend: str = "numpy", cache: str = "none") -> Case:
    compiled = backend == "jax-jit"
    return Case(
        id=f"{workload}[small]/{backend}/{cache}",
        workload=workload,
        size="small",
        backend=backend,
        cache=cache,
        title="Matrix product",
        adapter="firstlight.measure.adapters:NumPy",
        program=f"made.up:{workload}",
        reference="made.up:reference",
        parameters={"n": 64},
        tolerance=1e-5,
        seed=7,
        compiled=compiled,
        cache_kind="jax" if compiled else None,
    )


CASES = (make_case(), make_case(backend="jax-jit"), make_case(backend="jax-jit", cache="warm"))


def make_samples(case: Case, processes: int, calls: int, draw: random.Random) -> list[Sample]:
    """The check and the timed processes of a case, all successful."""
    found = [_sample(case, "check", 0)]
    found[0] = replace(
        found[0],
        facts={
            "data": [{"shape": [64, 64], "dtype": "float32", "layout": "C", "device": "host",
                      "bytes": 16384}],
            "data_sha256": [hashlib.sha256(case.workload.encode()).hexdigest()],
            "threads": {"cpus": 8}, "precision": {}, "sync": "none needed", "refusals": [],
        },
    )  # fmt: skip
    for index in range(processes):
        phases: dict[str, float | None] = {
            phase: draw.uniform(0.01, 0.02)
            if case.compiled or phase not in ("trace", "lower", "compile")
            else None
            for phase in PHASES
        }
        total = sum(v for v in phases.values() if v is not None) + 0.001
        base = draw.uniform(1e-3, 1.1e-3)
        found.append(
            replace(
                _sample(case, "timed", index),
                cold=ColdStart(total, phases, 0.001),
                warm=WarmCalls(
                    tuple(base * draw.uniform(1, 1.02) for _ in range(calls)), 10, (base * 10,) * 5
                ),
                memory=MemoryUse(dict.fromkeys(PHASES, 1 << 26), None, None),
                cache=proof(case),
                counts={"traces": 1, "lowerings": 1, "compiles": 1} if case.compiled else {},
            )
        )
    return found


def proof(case: Case) -> CacheProof:
    if case.cache_kind is None:
        return CacheProof(case.cache, True, "no persistent cache", 0, 0, None, None)
    counts = {"none": (0, 0, 0, 0), "cold": (0, 3, 3, 0), "warm": (3, 3, 3, 3)}[case.cache]
    return CacheProof(case.cache, True, None, *counts)


def _sample(case: Case, kind: str, index: int) -> Sample:
    return Sample(
        case=case.id,
        kind=kind,
        index=index,
        order=0,
        started_at="2026-03-01T09:15:00.000+00:00",
        status="ok",
        load_before=0.1,
        correctness=Correctness(True, 3e-7, case.tolerance, str(case.reference)),
    )


def in_turn(
    samples: list[Sample], cases: tuple[Case, ...], settings: Settings, begin: datetime
) -> list[Sample]:
    """The samples as if measured: in planned order, one after the other, in nanoseconds."""
    jobs = planned_jobs(cases, settings)
    places = {(case.id, kind, i): place for place, (case, kind, i) in enumerate(jobs)}
    ordered = sorted(samples, key=lambda s: places.get((s.case, s.kind, s.index), len(places)))
    taken, moment = [], begin
    for order, sample in enumerate(ordered):
        started = moment.isoformat(timespec="milliseconds")
        taken.append(replace(in_nanoseconds(sample), order=order, started_at=started))
        moment += timedelta(seconds=busy_seconds(sample) + 0.1)
    return taken


def in_nanoseconds(sample: Sample) -> Sample:
    """The sample with all times rounded to the resolution of the clock."""
    cold, warm = sample.cold, sample.warm
    if cold is not None:
        phases = {k: None if v is None else round(v, 9) for k, v in cold.phases_seconds.items()}
        cold = ColdStart(round(cold.total_seconds, 9), phases, round(cold.unattributed_seconds, 9))
    if warm is not None:
        calls, batches = (
            tuple(round(v, 9) for v in values) for values in (warm.call_seconds, warm.batch_seconds)
        )
        warm = replace(warm, call_seconds=calls, batch_seconds=batches)
    return replace(sample, cold=cold, warm=warm)


def make_run(
    folder: Path,
    number: int = 0,
    cases: tuple[Case, ...] = CASES,
    processes: int = 6,
    calls: int = 20,
    samples: list[Sample] | None = None,
    host: Mapping[str, Any] = HOST,
    target: str = "quick",
    files: Mapping[str, str] | None = None,
    most_calls: int = SAMPLING["quick"].warm_calls,
    is_side_of_gate: bool = False,
) -> Path:
    """A finished run directory; runs with different `number` differ."""
    folder.mkdir(parents=True)
    created = datetime(2026, 3, 1, 9, 15, tzinfo=UTC) + timedelta(minutes=number)
    settings = replace(SAMPLING["quick"], processes=processes, warm_calls=most_calls)
    plan = Plan(
        created_at=created.isoformat(timespec="milliseconds"),
        target=target,
        harness=HARNESS,
        host=host,
        warnings=("this machine does not exist",),
        fingerprint={} if is_side_of_gate else {"files": dict(files or {})},
        settings=settings,
        cases=cases,
    )
    write_json(folder / "plan.json", plan)
    draw = random.Random(number)
    if samples is None:
        samples = [s for case in cases for s in make_samples(case, processes, calls, draw)]
    numbered = in_turn(samples, cases, settings, created)
    for sample in numbered:
        append_sample(folder / "samples.jsonl", sample)
    last = datetime.fromisoformat(numbered[-1].started_at) if numbered else created
    busy = busy_seconds(numbered[-1]) if numbered else 0.0
    finished = (last + timedelta(seconds=busy + 0.2)).isoformat(timespec="milliseconds")
    run = replace(assemble(folder, plan, numbered, [0.2, 0.2, 0.3]), finished_at=finished)
    write_json(folder / "run.json", run, schema="run-1.schema.json")
    return folder
