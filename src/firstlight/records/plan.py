"""The plan of a run (`plan.json`), fixed and written before the first process starts.

Also defined here: the run order, and the environment variables that a cache policy stands for.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firstlight.records.samples import JsonObject

PLAN_SCHEMA = "firstlight.plan"
#: The adapter of cases that query a running server (`firstlight load`). Their cold time is that of
#: the first request.
SERVER_ADAPTER = "http"
#: Key in `Sample.facts`: the number of connections, if calls overlap.
CONCURRENT = "concurrent_calls"
#: Key in `Sample.facts`: the node of a cluster that measured it. Nodes run at the same time.
MEASURED_ON = "node"
#: Cache policies under which a priming process fills the cache before the timed ones.
PRIMED = ("warm", "shared", "frozen")
#: Set for every worker, and part of every protocol.
FLAGS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


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
    parameters: JsonObject
    tolerance: float
    seed: int | None
    compiled: bool
    cache_kind: str | None
    environment: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    skipped: str | None = None  # the reason, if it cannot run here
    note: str | None = None


@dataclass(frozen=True)
class Settings:
    """How many processes and calls are measured."""

    processes: int
    warm_calls: int  # at most, per process
    warm_calls_least: int
    warm_seconds: float  # at most, unless `warm_calls_least` calls take longer
    batches: int
    batch_seconds: float
    timeout_seconds: float
    affinity: tuple[int, ...] | None
    seed: int  # of the run order


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything needed to finish or repeat a run; fields are in the order of the file."""

    schema: str = PLAN_SCHEMA
    schema_version: int = 1
    created_at: str
    target: str
    harness: JsonObject
    host: JsonObject
    warnings: tuple[str, ...]
    #: What must not change when a run is resumed. Empty for a side of a gate: the gate checks it.
    fingerprint: JsonObject
    settings: Settings
    cases: tuple[Case, ...]


def rounds(cases: Sequence[Case], processes: int, seed: int) -> list[tuple[Case, int]]:
    """(case, process number) in run order: each round has every case once, newly shuffled."""
    shuffle = random.Random(seed).shuffle
    order: list[tuple[Case, int]] = []
    for index in range(processes):
        block = [(case, index) for case in cases]
        shuffle(block)
        order += block
    return order


def jobs(cases: Sequence[Case], settings: Settings) -> list[tuple[Case, str, int]]:
    """All processes of a run with these cases as (case, kind, number), in run order."""
    runnable = [case for case in cases if case.skipped is None]
    checks = [(case, "check", 0) for case, _ in rounds(runnable, 1, settings.seed - 1)]
    primes = [(case, "prime", 0) for case, _, _ in checks if case.cache in PRIMED]
    timed = rounds(runnable, settings.processes, settings.seed)
    return checks + primes + [(case, "timed", index) for case, index in timed]


def slug(case_id: str) -> str:
    """A file name for a case, unique and valid on any file system."""
    readable = "".join(c if c.isascii() and c.isalnum() else "-" for c in case_id)[:60]
    return f"{readable}-{hashlib.sha256(case_id.encode()).hexdigest()[:12]}"


def case_flags(case: Case, directory: Path) -> dict[str, str]:
    """The environment variables that the harness sets for a case."""
    return FLAGS | cache_variables(case.cache, case.cache_kind, directory) | dict(case.environment)


def cache_variables(policy: str, kind: str | None, directory: Path) -> dict[str, str]:
    """The environment variables that give a framework's persistent cache the declared state."""
    on = policy in ("cold", "warm", "shared")
    variables = {"CUDA_CACHE_PATH": str(directory / "cuda")} if on else {"CUDA_CACHE_DISABLE": "1"}
    if kind == "jax":
        variables["JAX_ENABLE_COMPILATION_CACHE"] = "true" if on else "false"
        if policy == "frozen":
            variables["FIRSTLIGHT_FROZEN"] = str(directory)
        if policy == "shared":  # as `firstlight exec --cache` does it
            variables |= {"FIRSTLIGHT_WARMSTART": "1", "FIRSTLIGHT_CACHE_DIR": str(directory)}
        elif on:
            # By default JAX does not store what compiles in less than a second.
            variables |= {
                "JAX_COMPILATION_CACHE_DIR": str(directory),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
    elif kind == "torch":
        # Inductor always writes its generated sources here, so "off" needs a fresh directory too.
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(directory)
        if on:
            variables |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
        else:
            variables["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    return variables
