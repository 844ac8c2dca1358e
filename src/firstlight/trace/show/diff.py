"""Compares two traces: which functions are new, gone, slower, or compiled more often."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstlight.present.quantities import counted, duration
from firstlight.trace.read.model import STAGES, Function, Trace
from firstlight.trace.wording import place

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: A single run is noisy: a difference must exceed both of these.
MIN_SECONDS = 0.05
MIN_RATIO = 1.25
_MAX_LINES = 12
_LINE_STYLES = {"+": "green", "-": "red"}
_STATUS_STYLES = {"new": "yellow", "slower": "red", "recompiled more": "red", "faster": "green"}

#: Pairs: (earlier trace, later trace).
Counts = tuple[int, ...]
Seconds = tuple[float, ...]


@dataclass(frozen=True)
class FunctionChange:
    """A function in both traces; `seconds` is None on a side that did not compile it."""

    name: str
    location: str | None  # in the later trace, otherwise in the earlier
    status: str
    compiles: Counts
    recompiles: Counts
    seconds: tuple[float | None, ...]
    stage_seconds: dict[str, Seconds]
    reasons: dict[str, int]  # of recompiles that only the later trace has

    @property
    def cost(self) -> float:
        """Additional seconds in the later trace."""
        return (self.seconds[1] or 0.0) - (self.seconds[0] or 0.0)


@dataclass(frozen=True)
class Comparison:
    """What changed between two traces."""

    versions: dict[str, tuple[str | None, ...]]
    time_to_first_result_seconds: tuple[float | None, ...]
    compiles: Counts
    recompiles: Counts
    compiling_seconds: Seconds
    phases_seconds: dict[str, Seconds]
    functions: tuple[FunctionChange, ...]  # highest additional cost first
    findings: dict[str, Counts]  # by kind, where the number differs
    programs: tuple[dict[str, Any], ...] = ()  # compiled programs that differ


def compare_folders(before: Path, after: Path) -> Comparison:
    """Compare the traces in two folders, and their compiled programs if both have them."""
    from firstlight.trace.findings import load

    found = compare(load(before), load(after))
    dumps = before / "hlo", after / "hlo"
    if all(dump.is_dir() for dump in dumps):
        return replace(found, programs=_programs(*dumps))
    return found


def _programs(before: Path, after: Path) -> tuple[dict[str, Any], ...]:
    """Programs whose optimised text differs."""
    from firstlight.compare.hlo import changes, programs_in

    return tuple(
        {
            "name": change.name,
            "status": change.status,
            "instructions": change.total,
            "by_kind": change.instructions,
            "diff": change.diff,
        }
        for change in changes(programs_in(before), programs_in(after))
        if change.status != "same"
    )


def compare(before: Trace, after: Trace) -> Comparison:
    """Compare two traces."""
    sides = (before, after)
    old, new = (_by_key(trace.functions) for trace in sides)
    changes = [_change(old.get(key, []), new.get(key, [])) for key in dict.fromkeys([*new, *old])]
    phases = dict.fromkeys(k for t in sides for p in t.processes for k in p.phases_seconds)
    kinds = [Counter(finding.kind for finding in trace.findings) for trace in sides]
    names = sorted(kind for kind in kinds[0] | kinds[1] if kinds[0][kind] != kinds[1][kind])
    versions = {
        name: tuple(next(filter(None, map(attrgetter(field), t.processes)), None) for t in sides)
        for name, field in (
            ("Python", "python"),
            ("JAX", "jax_version"),
            ("torch", "torch_version"),
        )
    }
    return Comparison(
        versions={name: pair for name, pair in versions.items() if any(pair)},
        time_to_first_result_seconds=tuple(t.time_to_first_result_seconds for t in sides),
        compiles=tuple(trace.compile_count for trace in sides),
        recompiles=tuple(trace.recompiles for trace in sides),
        compiling_seconds=tuple(sum(f.seconds for f in trace.functions) for trace in sides),
        phases_seconds={
            kind: tuple(sum(p.phases_seconds.get(kind, 0.0) for p in t.processes) for t in sides)
            for kind in phases
        },
        functions=tuple(sorted(changes, key=lambda c: -c.cost)),
        findings={kind: (kinds[0][kind], kinds[1][kind]) for kind in names},
    )


def _by_key(functions: Iterable[Function]) -> dict[object, list[Function]]:
    """Functions by module and name, which stay the same when files move and lines shift.

    Lambdas, which have no name, also by file and line.
    """
    found: dict[object, list[Function]] = defaultdict(list)
    for function in functions:
        where = ""
        if "<lambda>" in function.name and function.place is not None:
            where = f"{Path(function.place.file).name}:{function.place.line}"
        found[function.module, function.name, where].append(function)
    return found


def _change(old: Sequence[Function], new: Sequence[Function]) -> FunctionChange:
    first, sides = (new or old)[0], (old, new)
    compiles = tuple(sum(c.compiled for f in side for c in f.compiles) for side in sides)
    took = tuple(sum(f.seconds for f in side) if side else None for side in sides)
    reasons = [
        Counter(str(c.recompile_reason) for f in side for c in f.compiles if c.recompile_reason)
        for side in sides
    ]
    return FunctionChange(
        name=first.name,
        location=None if first.place is None else place(first.place),
        status=_status(took, compiles),
        compiles=compiles,
        recompiles=tuple(sum(f.recompiles for f in side if not f.library) for side in sides),
        seconds=took,
        stage_seconds={
            stage: tuple(sum(f.stage_seconds[stage] for f in side) for side in sides)
            for stage in STAGES
        },
        reasons=dict(reasons[1] - reasons[0]),
    )


def _status(took: Sequence[float | None], compiles: Sequence[int]) -> str:
    before, after = took
    if before is None or after is None:
        return "new" if before is None else "gone"
    if compiles[0] != compiles[1]:
        return "recompiled more" if compiles[1] > compiles[0] else "recompiled less"
    low, high = sorted((before, after))
    if high - low <= MIN_SECONDS or high <= MIN_RATIO * low:
        return "same"
    return "slower" if after > before else "faster"


# --- on the terminal ------------------------------------------------------------------------------


def print_comparison(found: Comparison, every: bool, console: Console | None = None) -> None:
    """Versions, totals, then the functions that changed, worst first."""
    from rich.text import Text

    from firstlight.present.plain_text import printable
    from firstlight.present.terminal import Terminal

    console = console or Terminal()

    def say(line: str, style: str = "") -> None:
        console.print(Text(printable(line), style=style))

    for name, (a, b) in found.versions.items():
        say(f"{name} {a or 'none'} → {b or 'none'}" if a != b else f"{name} {a} in both")
    say(
        f"First result {_arrow(found.time_to_first_result_seconds)}; compiles "
        f"{found.compiles[0]} → {found.compiles[1]}, again {found.recompiles[0]} → "
        f"{found.recompiles[1]}; compiling {_arrow(found.compiling_seconds)}.",
        "bold",
    )
    shown = [f for f in found.functions if every or f.status != "same"]
    # Worst first; then improvements, the largest first.
    shown.sort(key=lambda f: (f.status == "same", f.cost <= 0, -abs(f.cost)))
    if shown:
        console.print(_table(shown))
    same = len(found.functions) - len(shown)
    if same:
        say(f"{counted(same, 'function')} as before.", "dim")
    for kind, (was, now) in found.findings.items():
        say(f"Findings of the kind “{kind}”: {was} → {now}")
    for program in found.programs:
        was, now = program["instructions"]
        say(f"{program['name']}: {program['status']}, {was} → {now} instructions")
        if program["status"] == "changed":
            for line in program["diff"].splitlines()[2 : 2 + _MAX_LINES]:
                say(f"    {line}", _LINE_STYLES.get(line[:1], ""))
    if found.programs:
        say("For the full text of each changed program, use --json FILE.", "dim")
    say(
        f"One run of each: differences below {duration(MIN_SECONDS)} or {MIN_RATIO - 1:.0%} "
        "cannot be distinguished from noise.",
        "dim",
    )


def _arrow(seconds: Iterable[float | None]) -> str:
    return " → ".join("none" if s is None else duration(s) for s in seconds)


def _table(changes: Sequence[FunctionChange]) -> Table:
    from firstlight.trace.show.terminal import table

    rows = [
        (
            (
                change.status,
                change.name,
                change.location or "",
                f"{change.compiles[0]} → {change.compiles[1]}",
                _arrow(change.seconds),
                ", ".join(f"{n} {reason}" for reason, n in change.reasons.items()),
            ),
            _STATUS_STYLES.get(change.status, ""),
        )
        for change in changes
    ]
    return table("", ("", "function", "where", "compiles", "seconds", "why again"), rows)
