"""Explains why a case is slower: phases, functions, and compiled programs that changed.

Phases come from the gate's samples. Functions and programs come from additional processes that are
not timed, because recording functions and dumping programs takes time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.compare.hlo import Program, ProgramChange, changes, programs_in
from firstlight.compare.verdicts import Comparison
from firstlight.gate.decision import GateReport
from firstlight.gate.measuring import PairedCase
from firstlight.gate.sides import Side
from firstlight.measure.process import Outcome
from firstlight.measure.runner import worker_environment, worker_job
from firstlight.records import PHASES, Case, JsonObject, Settings, slug, write_json, write_text
from firstlight.statistics.intervals import median
from firstlight.telemetry.events import bare_name

#: Processes per side that report times by function.
_PROCESSES = 3
#: A phase is reported if its shift is at least this share of the largest shift of a phase or of the
#: whole cold start.
_MIN_SHARE = 0.1
Steps = Sequence[JsonObject]  # of one process: {function, phase, seconds} per step


@dataclass(frozen=True)
class FunctionChange:
    """The time to trace, lower or compile a function on both sides: medians over processes."""

    function: str
    phase: str
    base_seconds: float
    head_seconds: float
    base_times: int  # number of times per process
    head_times: int


@dataclass(frozen=True)
class Explanation:
    """What changed in a case."""

    case: str
    phases: tuple[Comparison, ...]  # largest shift first
    functions: tuple[FunctionChange, ...] = ()  # largest shift first
    programs: tuple[ProgramChange, ...] = ()
    folder: str | None = None  # with programs and their differences
    problem: str | None = None  # why something is missing


def explain(
    report: GateReport,
    case: PairedCase,
    settings: Settings,
    sides: tuple[Side, Side],
    parent: Path,
) -> Explanation:
    """Explain one case; programs and their differences are written below `parent`."""
    found = Explanation(case.id, tuple(moved_phases(report, case.id)))
    if case.base.cache_kind is None:
        return replace(found, problem="this backend compiles nothing")
    steps = record_steps(case, settings, sides)
    if isinstance(steps, str):
        return replace(found, problem=steps)
    folder = parent / slug(case.id)
    folder.mkdir(parents=True, exist_ok=True)
    functions = tuple(function_changes(steps))
    write_json(folder / "functions.json", functions)
    found = replace(found, functions=functions, folder=str(folder))
    if case.base.cache_kind != "jax":
        return replace(found, problem="only JAX's programs are dumped")
    dumped = {side.name: dump_programs(case, settings, side) for side in sides}
    programs = tuple(changes(dumped["base"], dumped["head"]))
    _write_programs(folder, dumped, programs)
    missing = None if any(dumped.values()) else "no program was dumped"
    return replace(found, programs=programs, problem=missing)


def moved_phases(report: GateReport, case: str) -> list[Comparison]:
    """Phases that account for the shift of the cold start, the largest first."""
    own = {c.quantity: c for c in report.comparisons if c.case == case}
    shifts = {name: abs(c.head.median - c.base.median) for name, c in own.items()}
    phases = [name for name in PHASES if name in own]
    whole = max((shifts[name] for name in (*phases, "cold_seconds") if name in own), default=0.0)
    moved = [name for name in phases if whole and shifts[name] >= _MIN_SHARE * whole]
    return [own[name] for name in sorted(moved, key=lambda name: -shifts[name])]


def record_steps(
    case: PairedCase, settings: Settings, sides: tuple[Side, Side]
) -> dict[str, list[Steps]] | str:
    """By side: the steps that each of its processes reported; or an error message."""
    found: dict[str, list[Steps]] = {side.name: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="firstlight-explain-") as scratch:
        for number in range(_PROCESSES):
            for side in sides if number % 2 == 0 else sides[::-1]:
                outcome = _run(case.on(side.name), settings, side, Path(scratch))
                report = outcome.report or {}
                if "functions" not in report:
                    said = report.get("exception") or outcome.output_tail[-300:]
                    return f"{side.name}: recording functions failed: {said.strip() or 'no report'}"
                found[side.name].append(report["functions"])
    return found


def _run(case: Case, settings: Settings, side: Side, scratch: Path, xla_flags: str = "") -> Outcome:
    # Without the persistent cache, so that everything is compiled.
    case = replace(case, cache="none")
    cache = scratch / "cache"
    cache.mkdir(exist_ok=True)
    environment = worker_environment(case, cache)
    if xla_flags:
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {xla_flags}".strip()
    job = worker_job(case, "explain", settings, scratch / "reference.npz")
    return side.spawner()(job, environment, settings.timeout_seconds, settings.affinity)


def function_changes(reports: Mapping[str, Sequence[Steps]]) -> list[FunctionChange]:
    """Medians over processes per function and phase, the largest change first."""
    base, head = ([_seconds(steps) for steps in reports[side]] for side in ("base", "head"))
    rows = []
    for function, phase in dict.fromkeys(key for one in (*base, *head) for key in one):
        spent = [[one.get((function, phase), []) for one in side] for side in (base, head)]
        before, after = (median([sum(steps) for steps in side]) for side in spent)
        once, now = (round(median([len(steps) for steps in side])) for side in spent)
        rows.append(FunctionChange(function, phase, before, after, once, now))
    return sorted(rows, key=lambda r: -abs(r.head_seconds - r.base_seconds))


def _seconds(steps: Steps) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for step in steps:
        # Tracing reports `f`, compiling `jit(f)`.
        key = (bare_name(step["function"]), step["phase"])
        found.setdefault(key, []).append(step["seconds"])
    return found


def dump_programs(case: PairedCase, settings: Settings, side: Side) -> list[Program]:
    """The programs that XLA compiles for the case on one side."""
    with tempfile.TemporaryDirectory(prefix="firstlight-explain-") as scratch:
        folder = Path(scratch) / "hlo"
        folder.mkdir()
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        _run(case.on(side.name), settings, side, Path(scratch), flags)
        return programs_in(folder)


def _write_programs(
    folder: Path, dumped: Mapping[str, list[Program]], found: Sequence[ProgramChange]
) -> None:
    for side, programs in dumped.items():
        (folder / side).mkdir(exist_ok=True)
        for number, program in enumerate(programs):
            name = f"{number:03d}-{_file_name(program.name)}.hlo.txt"
            write_text(folder / side / name, program.text)
    for number, change in enumerate(found):
        if change.diff:
            name = f"{number:03d}-{_file_name(change.name)}.diff"
            write_text(folder / name, change.diff + "\n")


def _file_name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in name)[:80]
