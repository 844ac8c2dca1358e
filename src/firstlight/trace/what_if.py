"""`--what-if`: runs the program again in fresh processes, with other XLA settings.

The runs are interleaved in rounds, so that a change in the machine's speed affects all settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from firstlight.trace import running

BASE = "as it is"


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of some runs."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Variant:
    """The program under other settings. A spread is None if no run got so far."""

    name: str
    how: str  # the settings, as environment variables
    runs: int
    failed: int
    first_result_seconds: Spread | None
    compile_seconds: Spread | None  # with tracing and lowering
    wall_seconds: Spread | None


@dataclass(frozen=True)
class WhatIf:
    """All variants; the unchanged program is the first."""

    rounds: int
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class _Run:
    ok: bool
    first: float | None
    compiling: float
    wall: float


def _variants(folder: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """{name: (text for the user, environment variables)}"""
    flags = os.environ.get("XLA_FLAGS", "")
    levels = {level: f"--xla_backend_optimization_level={level}" for level in (0, 1)}
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str((folder / "cache").absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    how = "JAX_COMPILATION_CACHE_DIR=… JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"
    return {
        BASE: ("", {}),
        **{
            f"optimisation level {level}": (
                f"XLA_FLAGS={flag}",
                {"XLA_FLAGS": f"{flags} {flag}".strip()},
            )
            for level, flag in levels.items()
        },
        "warm cache": (how, cache),
    }


def measure(
    command: Sequence[str],
    folder: Path,
    rounds: int,
    say: Callable[[str], None],
    variables: Mapping[str, str],
) -> WhatIf:
    """Run every variant `rounds` times, after one run to fill the cache.
    variables: environment of all runs. say: prints a line."""
    planned = {name: (how, {**variables, **own}) for name, (how, own) in _variants(folder).items()}
    say(
        f"--what-if runs the program {rounds * len(planned) + 1} more times, without input and "
        f"with its output in {folder}: files that it writes are written again."
    )
    done: dict[str, list[_Run]] = {name: [] for name in planned}
    folder.mkdir(parents=True)
    _run(command, folder / "fill-cache", planned["warm cache"][1])
    for number in range(rounds):
        # Every other round backwards, so that a variant does not always follow the same one.
        for name in list(planned)[:: 1 if number % 2 == 0 else -1]:
            where = folder / f"{name.replace(' ', '-')}-{number + 1}"
            done[name].append(_run(command, where, planned[name][1]))
    summaries = (_summary(name, planned[name][0], runs) for name, runs in done.items())
    return WhatIf(rounds, tuple(summaries))


def _run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> _Run:
    from firstlight.trace.read.assembly import read_folder
    from firstlight.trace.read.log_events import TraceLogError

    folder.mkdir()
    with open(folder / "output.txt", "wb") as output:
        outcome = running.run(command, folder, variables, output.fileno())
    try:
        trace = read_folder(folder)
    except TraceLogError:
        return _Run(False, None, 0.0, outcome.seconds)
    compiling = sum(f.seconds for f in trace.functions)
    first = trace.time_to_first_result_seconds
    return _Run(outcome.succeeded, first, compiling, outcome.seconds)


def _summary(name: str, how: str, runs: Sequence[_Run]) -> Variant:
    fine = [run for run in runs if run.ok]
    return Variant(
        name=name,
        how=how,
        runs=len(runs),
        failed=len(runs) - len(fine),
        first_result_seconds=Spread.of([r.first for r in fine if r.first is not None]),
        compile_seconds=Spread.of([r.compiling for r in fine]),
        wall_seconds=Spread.of([r.wall for r in fine]),
    )
