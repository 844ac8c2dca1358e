"""Two traces held against each other: what is new, gone, slower, or compiled more often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firstlight.present.quantities import counted, duration
from firstlight.trace.read.model import STAGES, Function, Trace
from firstlight.trace.wording import place

if TYPE_CHECKING:
    from rich.console import Console

#: A single run is noisy: less than both of these is no difference.
MIN_SECONDS = 0.05
MIN_RATIO = 1.25
_MAX_LINES = 12
_DIFF_STYLES = {"+": "green", "-": "red"}


@dataclass(frozen=True)
class FunctionChange:
    """A function in both traces; a side that did not compile it has None."""

    name: str
    location: str | None  # in the later trace, if it is there
    status: str
    compiles: tuple[int, int]
    recompiles: tuple[int, int]
    seconds: tuple[float | None, float | None]
    stage_seconds: dict[str, tuple[float, float]]
    reasons: dict[str, int]  # of recompiles in the later trace that the earlier has not

    @property
    def cost(self) -> float:
        """Seconds more than before."""
        return (self.seconds[1] or 0.0) - (self.seconds[0] or 0.0)


@dataclass(frozen=True)
class Comparison:
    """Two traces; of every pair the first is of the earlier one."""

    versions: dict[str, tuple[str | None, str | None]]
    time_to_first_result_seconds: tuple[float | None, float | None]
    compiles: tuple[int, int]
    recompiles: tuple[int, int]
    compiling_seconds: tuple[float, float]
    phases_seconds: dict[str, tuple[float, float]]
    functions: tuple[FunctionChange, ...]  # the most that was lost first
    findings: dict[str, tuple[int, int]]  # by kind, where the number differs
    programs: tuple[dict[str, Any], ...] = ()  # compiled programs that differ, by function


def compare_folders(before: Path, after: Path) -> Comparison:
    """The traces in two folders, with their compiled programs if both have kept them."""
    from dataclasses import replace

    from firstlight.trace.findings import load

    found = compare(load(before), load(after))
    dumps = before / "hlo", after / "hlo"
    if all(dump.is_dir() for dump in dumps):
        return replace(found, programs=_programs(*dumps))
    return found


def compare(before: Trace, after: Trace) -> Comparison:
    """What changed."""
    old, new = _by_key(before.functions), _by_key(after.functions)
    changes = [_change(old.get(key, ()), new.get(key, ())) for key in dict.fromkeys([*new, *old])]
    kinds = [Counter(f.kind for f in trace.findings) for trace in (before, after)]
    return Comparison(
        versions=_versions(before, after),
        time_to_first_result_seconds=(
            before.time_to_first_result_seconds,
            after.time_to_first_result_seconds,
        ),
        compiles=(before.compiles, after.compiles),
        recompiles=(before.recompiles, after.recompiles),
        compiling_seconds=(_compiling(before), _compiling(after)),
        phases_seconds=_phases(before, after),
        functions=tuple(sorted(changes, key=lambda c: -c.cost)),
        findings={
            kind: (kinds[0][kind], kinds[1][kind])
            for kind in sorted({*kinds[0], *kinds[1]})
            if kinds[0][kind] != kinds[1][kind]
        },
    )


_Key = tuple[str | None, str, str]


def _by_key(functions: Iterable[Function]) -> dict[_Key, tuple[Function, ...]]:
    """Functions by what stays when files move and lines shift: module and name.

    Lambdas have no name of their own: their file and the text of their place must do.
    """
    found: dict[_Key, tuple[Function, ...]] = {}
    for function in functions:
        where = ""
        if "<lambda>" in function.name and function.place is not None:
            where = f"{Path(function.place.file).name}:{function.place.line}"
        key = (function.module, function.name, where)
        found[key] = (*found.get(key, ()), function)
    return found


def _change(old: Sequence[Function], new: Sequence[Function]) -> FunctionChange:
    first = (new or old)[0]
    compiles = (_compiles(old), _compiles(new))
    recompiles = (_recompiles(old), _recompiles(new))
    took = (_seconds(old), _seconds(new))
    stages = [{s: sum(f.stage_seconds[s] for f in side) for s in STAGES} for side in (old, new)]
    reasons = _reasons(new) - _reasons(old)
    return FunctionChange(
        name=first.name,
        location=None if first.place is None else place(first.place),
        status=_status(bool(old), bool(new), took, compiles),
        compiles=compiles,
        recompiles=recompiles,
        seconds=took,
        stage_seconds={s: (stages[0][s], stages[1][s]) for s in STAGES},
        reasons=dict(reasons),
    )


def _status(
    in_old: bool,
    in_new: bool,
    took: tuple[float | None, float | None],
    compiles: tuple[int, int],
) -> str:
    if not in_old or not in_new:
        return "new" if in_new else "gone"
    if compiles[0] != compiles[1]:
        return "recompiled more" if compiles[1] > compiles[0] else "recompiled less"
    before, after = took[0] or 0.0, took[1] or 0.0
    if after - before > MIN_SECONDS and after > MIN_RATIO * before:
        return "slower"
    if before - after > MIN_SECONDS and before > MIN_RATIO * after:
        return "faster"
    return "same"


def _compiles(side: Sequence[Function]) -> int:
    return sum(c.compiled for f in side for c in f.compiles)


def _recompiles(side: Sequence[Function]) -> int:
    return sum(f.recompiles for f in side if not f.library)


def _seconds(side: Sequence[Function]) -> float | None:
    return sum(f.seconds for f in side) if side else None


def _reasons(side: Sequence[Function]) -> Counter[str]:
    return Counter(c.recompile_reason for f in side for c in f.compiles if c.recompile_reason)


def _compiling(trace: Trace) -> float:
    return sum(f.seconds for f in trace.functions)


def _phases(before: Trace, after: Trace) -> dict[str, tuple[float, float]]:
    sums: list[Counter[str]] = []
    for trace in (before, after):
        total: Counter[str] = Counter()
        for process in trace.processes:
            for kind, value in process.phases_seconds.items():
                total[kind] += value  # type: ignore[assignment]
        sums.append(total)
    kinds = dict.fromkeys([*sums[0], *sums[1]])
    return {kind: (float(sums[0][kind]), float(sums[1][kind])) for kind in kinds}


def _versions(before: Trace, after: Trace) -> dict[str, tuple[str | None, str | None]]:
    def of(trace: Trace, attribute: str) -> str | None:
        told = [getattr(p, attribute) for p in trace.processes if getattr(p, attribute)]
        return told[0] if told else None

    names = {"python": "Python", "jax_version": "JAX", "torch_version": "torch"}
    found = {name: (of(before, a), of(after, a)) for a, name in names.items()}
    return {name: pair for name, pair in found.items() if any(pair)}


def _programs(before: Path, after: Path) -> tuple[dict[str, Any], ...]:
    """Programs whose optimised text differs."""
    from firstlight.compare.hlo import changes, programs_in

    return tuple(
        {
            "name": change.name,
            "status": change.status,
            "instructions": list(change.total),
            "by_kind": {kind: list(pair) for kind, pair in change.instructions.items()},
            "diff": change.diff,
        }
        for change in changes(programs_in(before), programs_in(after))
        if change.status != "same"
    )


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
    say(_totals(found), "bold")
    shown = [f for f in found.functions if every or f.status != "same"]
    # Worst first; of those that got better, the best first.
    shown.sort(key=lambda f: (f.status == "same", f.cost <= 0, -abs(f.cost)))
    if shown:
        console.print(_table(shown))
    same = len(found.functions) - len(shown)
    if same:
        say(f"{counted(same, 'function')} as before.", "dim")
    for kind, (was, now) in found.findings.items():
        say(f"Findings of the kind “{kind}”: {was} → {now}")
    for program in found.programs:
        before, after = program["instructions"]
        say(f"{program['name']}: {program['status']}, {before} → {after} instructions")
        if program["status"] == "changed":
            for line in program["diff"].splitlines()[2 : 2 + _MAX_LINES]:
                say(f"    {line}", _DIFF_STYLES.get(line[:1], ""))
    if found.programs:
        say("The whole text of each program that changed: --json FILE.", "dim")
    say(
        f"One run of each: differences below {duration(MIN_SECONDS)} or {MIN_RATIO - 1:.0%} "
        "are not told from noise.",
        "dim",
    )


def _totals(found: Comparison) -> str:
    first = " → ".join(
        "none" if s is None else duration(s) for s in found.time_to_first_result_seconds
    )
    compiling = " → ".join(duration(s) for s in found.compiling_seconds)
    return (
        f"First result {first}; compiles {found.compiles[0]} → {found.compiles[1]}, again "
        f"{found.recompiles[0]} → {found.recompiles[1]}; compiling {compiling}."
    )


def _table(changes: Sequence[FunctionChange]) -> Any:
    from firstlight.trace.show.terminal import table

    styles = {"new": "yellow", "slower": "red", "recompiled more": "red", "faster": "green"}
    columns = ("", "function", "where", "compiles", "seconds", "why again")
    rows = [
        (
            (
                change.status,
                change.name,
                change.location or "",
                f"{change.compiles[0]} → {change.compiles[1]}",
                " → ".join("none" if s is None else duration(s) for s in change.seconds),
                ", ".join(f"{n} {reason}" for reason, n in change.reasons.items()),
            ),
            styles.get(change.status, ""),
        )
        for change in changes
    ]
    return table("", columns, rows)
