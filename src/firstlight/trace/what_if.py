"""What would be gained: the program run again in fresh processes, with other settings of XLA.

The runs are interleaved round by round, so that a machine that slows down does so for all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from firstlight.trace import running
from firstlight.trace.quantities import counted, seconds

if TYPE_CHECKING:
    from rich.console import Console

BASE = "as it is"
_LEVEL = "--xla_backend_optimization_level"


@dataclass(frozen=True)
class Spread:
    """The middle of some runs, with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(median(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Variant:
    """The program under other settings; None: no run of it got so far."""

    name: str
    how: str  # to do the same
    runs: int
    failed: int
    first_result_seconds: Spread | None
    compile_seconds: Spread | None  # with tracing and lowering
    wall_seconds: Spread | None


@dataclass(frozen=True)
class WhatIf:
    """All variants, the program as it is first."""

    rounds: int
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class _Run:
    ok: bool
    first: float | None
    compiling: float
    wall: float


def variants(folder: Path) -> dict[str, tuple[str, dict[str, str]]]:
    """{name: (how to do the same, variables of the environment)}"""
    flags = os.environ.get("XLA_FLAGS", "")
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str((folder / "cache").absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    found: dict[str, tuple[str, dict[str, str]]] = {BASE: ("", {})}
    for level in (0, 1):
        flag = f"{_LEVEL}={level}"
        found[f"optimisation level {level}"] = (
            f"XLA_FLAGS={flag}",
            {"XLA_FLAGS": f"{flags} {flag}".strip()},
        )
    how = "JAX_COMPILATION_CACHE_DIR=… JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"
    found["warm cache"] = (how, cache)
    return found


def measure(
    command: Sequence[str],
    folder: Path,
    rounds: int,
    say: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
) -> WhatIf:
    """Run every variant `rounds` times, and the cache once more to fill it.

    variables: of the environment, of all variants.
    """
    common = dict(variables or {})
    planned = {name: (how, common | own) for name, (how, own) in variants(folder).items()}
    runs = rounds * len(planned) + 1
    say(
        f"--what-if runs the program {runs} more times, without input and with its output in "
        f"{folder}: whatever it writes, it writes again."
    )
    done: dict[str, list[_Run]] = {name: [] for name in planned}
    folder.mkdir(parents=True)
    _run(command, folder / "fill-cache", planned["warm cache"][1])
    for number in range(rounds):
        # Every other round backwards: whatever the one before leaves warm is not always the same.
        order = list(planned) if number % 2 == 0 else list(reversed(planned))
        for name in order:
            where = folder / f"{name.replace(' ', '-')}-{number + 1}"
            done[name].append(_run(command, where, planned[name][1]))
    return WhatIf(
        rounds, tuple(_summary(name, planned[name][0], runs) for name, runs in done.items())
    )


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


# --- in words -------------------------------------------------------------------------------------


def spread_text(spread: Spread | None) -> str:
    """'1.20 s (1.18 to 1.31)'"""
    if spread is None:
        return "none"
    if spread.low == spread.high:
        return seconds(spread.median)
    middle, low, high = map(seconds, (spread.median, spread.low, spread.high))
    units = {text.rpartition(" ")[2] for text in (middle, low, high)}
    if len(units) == 1:
        low, high = (text.rpartition(" ")[0] for text in (low, high))
    return f"{middle} ({low} to {high})"


def verdict(found: WhatIf) -> str:
    """Which variant starts soonest, if the runs can tell it from the program as it is."""
    if found.rounds < 2:
        return "One run of each tells no setting from chance: give --what-if-rounds 3 or more."
    base, *others = found.variants
    if base.first_result_seconds is None:
        return "The program as it is had no first result: there is nothing to compare with."
    best = min(
        (v for v in others if v.first_result_seconds and not v.failed),
        key=lambda v: v.first_result_seconds.median if v.first_result_seconds else 0.0,
        default=None,
    )
    if best is None or best.first_result_seconds is None:
        return "No other setting ran to its end."
    if best.first_result_seconds.high >= base.first_result_seconds.low:
        return "No setting gives the first result sooner than all runs of the program as it is."
    gained = base.first_result_seconds.median - best.first_result_seconds.median
    whole = ""
    if base.wall_seconds and best.wall_seconds and best.wall_seconds.low > base.wall_seconds.high:
        longer = best.wall_seconds.median - base.wall_seconds.median
        whole = f", but the whole run takes {seconds(longer)} longer"
    return f"Soonest: {best.name}, {seconds(gained)} before the program as it is{whole}."


def print_what_if(found: WhatIf, console: Console) -> None:
    """A table of variants."""
    from rich import box
    from rich.table import Table

    title = f"What if: measured in {counted(found.rounds, 'run')} of each"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("setting", "first result", "compiling", "whole run"):
        table.add_column(name, justify="left" if name == "setting" else "right")
    for v in found.variants:
        failed = f", {v.failed} failed" if v.failed else ""
        spreads = (v.first_result_seconds, v.compile_seconds, v.wall_seconds)
        table.add_row(v.name + failed, *(spread_text(s) for s in spreads))
    console.print(table)
    console.print(verdict(found))
    for v in found.variants:
        if v.how:
            console.print(f"  {v.name}: {v.how}", style="dim", markup=False)
