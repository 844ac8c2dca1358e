"""Why is a case slower? Which phase moved, which function, and what the compiler made of it.

Phases come from the gate's own samples. Functions and programs come from extra processes that are
not timed: naming functions and dumping programs disturb what they watch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstlight.compare.hlo import Program, ProgramChange, changes, programs_in
from firstlight.compare.verdicts import Comparison
from firstlight.gate.decision import GateReport
from firstlight.gate.measuring import PairedCase
from firstlight.gate.sides import Side
from firstlight.measure.process import Outcome
from firstlight.measure.runner import worker_environment, worker_job
from firstlight.records import PHASES, Case, Settings, slug, write_json, write_text
from firstlight.statistics.intervals import median

#: Processes a side that name functions: enough for a median.
_PROCESSES = 3
#: A phase is told if it makes up this share of what the cold start has moved by.
_TOLD_SHARE = 0.1


@dataclass(frozen=True)
class FunctionChange:
    """What a function costs to trace, lower or compile on both sides: medians over processes."""

    function: str
    phase: str
    base_seconds: float
    head_seconds: float
    base_times: int  # how often in one process
    head_times: int


@dataclass(frozen=True)
class Explanation:
    """All that is known of a failing case."""

    case: str
    phases: tuple[Comparison, ...]  # those that moved most, first
    functions: tuple[FunctionChange, ...]  # by how much they moved
    programs: tuple[ProgramChange, ...]
    folder: str | None  # where programs and their differences are written
    problem: str | None = None  # why something is missing


def explain(
    report: GateReport,
    case: PairedCase,
    settings: Settings,
    sides: tuple[Side, Side],
    parent: Path,
) -> Explanation:
    """What is known of one case; programs and their differences are written below `parent`."""
    folder = parent / slug(case.id)
    phases = tuple(moved_phases(report, case.id))
    if case.base.cache_kind is None:
        return Explanation(case.id, phases, (), (), None, "this backend compiles nothing")
    named = name_functions(case, settings, sides)
    if isinstance(named, str):
        return Explanation(case.id, phases, (), (), None, named)
    functions = function_changes(named)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "functions.json", functions)
    if case.base.cache_kind != "jax":
        words = "only JAX's programs are dumped"
        return Explanation(case.id, phases, tuple(functions), (), str(folder), words)
    dumped = {side.name: dump_programs(case, settings, side) for side in sides}
    found = changes(dumped["base"], dumped["head"])
    _write_programs(folder, dumped, found)
    missing = None if any(dumped.values()) else "no program was dumped"
    return Explanation(case.id, phases, tuple(functions), tuple(found), str(folder), missing)


def moved_phases(report: GateReport, case: str) -> list[Comparison]:
    """Phases that make up the difference of the cold start, the largest part first."""
    own = {c.quantity: c for c in report.comparisons if c.case == case}
    shifts = {name: own[name].head.median - own[name].base.median for name in PHASES if name in own}
    whole = max((abs(shift) for shift in shifts.values()), default=0.0)
    if "cold_seconds" in own:
        cold = own["cold_seconds"]
        whole = max(whole, abs(cold.head.median - cold.base.median))
    told = [name for name, shift in shifts.items() if whole and abs(shift) >= _TOLD_SHARE * whole]
    return [own[name] for name in sorted(told, key=lambda name: -abs(shifts[name]))]


def name_functions(
    case: PairedCase, settings: Settings, sides: tuple[Side, Side]
) -> dict[str, list[list[dict[str, Any]]]] | str:
    """For each side what its processes told of every compilation, or what went wrong."""
    found: dict[str, list[list[dict[str, Any]]]] = {side.name: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="firstlight-explain-") as scratch:
        for number in range(_PROCESSES):
            for side in sides if number % 2 == 0 else sides[::-1]:
                outcome = _watched(case.on(side.name), settings, side, Path(scratch), {})
                if outcome.report is None or "functions" not in outcome.report:
                    said = (outcome.report or {}).get("exception") or outcome.output_tail[-300:]
                    return f"{side.name} could not be watched: {said.strip() or 'no report'}"
                found[side.name].append(outcome.report["functions"])
    return found


def _watched(
    case: Case, settings: Settings, side: Side, scratch: Path, extra: dict[str, str]
) -> Outcome:
    # Without the persistent cache: what is read from it was compiled by nobody.
    case = replace(case, cache="none")
    cache = scratch / "cache"
    cache.mkdir(exist_ok=True)
    environment = worker_environment(case, cache)
    if "XLA_FLAGS" in extra and "XLA_FLAGS" in environment:
        extra = {"XLA_FLAGS": f"{environment['XLA_FLAGS']} {extra['XLA_FLAGS']}"}
    job = worker_job(case, "explain", settings, scratch / "reference.npz")
    return side.spawner()(job, environment | extra, settings.timeout_seconds, settings.affinity)


def function_changes(reports: dict[str, list[list[dict[str, Any]]]]) -> list[FunctionChange]:
    """Medians over processes for each function and phase, the largest change first."""
    sums = {side: [_summed(one) for one in found] for side, found in reports.items()}
    keys = {key: None for found in sums.values() for one in found for key in one}
    rows = []
    for function, phase in keys:
        values = {
            side: [one.get((function, phase), (0.0, 0)) for one in found]
            for side, found in sums.items()
        }
        seconds = {side: median([s for s, _ in v]) for side, v in values.items()}
        times = {side: round(median([n for _, n in v])) for side, v in values.items()}
        rows.append(
            FunctionChange(
                function, phase, seconds["base"], seconds["head"], times["base"], times["head"]
            )
        )
    return sorted(rows, key=lambda r: -abs(r.head_seconds - r.base_seconds))


def _summed(functions: list[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, int]]:
    total: dict[tuple[str, str], tuple[float, int]] = {}
    for one in functions:
        # Tracing says `f`, compiling `jit(f)`: one function to its author.
        name = one["function"].removeprefix("jit(").removesuffix(")")
        seconds, times = total.get((name, one["phase"]), (0.0, 0))
        total[name, one["phase"]] = (seconds + one["seconds"], times + 1)
    return total


def dump_programs(case: PairedCase, settings: Settings, side: Side) -> list[Program]:
    """What XLA made of the case on one side."""
    with tempfile.TemporaryDirectory(prefix="firstlight-explain-") as scratch:
        folder = Path(scratch) / "hlo"
        folder.mkdir()
        flags = {"XLA_FLAGS": f"--xla_dump_to={folder} --xla_dump_hlo_as_text"}
        _watched(case.on(side.name), settings, side, Path(scratch), flags)
        return programs_in(folder)


def _write_programs(
    folder: Path, dumped: dict[str, list[Program]], found: Sequence[ProgramChange]
) -> None:
    for side, programs in dumped.items():
        (folder / side).mkdir(exist_ok=True)
        for number, program in enumerate(programs):
            name = f"{number:03d}-{file_name(program.name)}.hlo.txt"
            write_text(folder / side / name, program.text)
    for number, change in enumerate(found):
        if change.diff:
            name = f"{number:03d}-{file_name(change.name)}.diff"
            write_text(folder / name, change.diff + "\n")


def file_name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in name)[:80]
