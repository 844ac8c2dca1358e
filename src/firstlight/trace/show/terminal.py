"""A trace on the terminal: the verdict first, then where the time went, then the functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.columns import Columns
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from firstlight.present.plain_text import printable
from firstlight.present.quantities import counted, duration
from firstlight.present.terminal import Terminal
from firstlight.trace.findings.limits import Excess
from firstlight.trace.read import phases
from firstlight.trace.read.model import STAGES, Finding, Function, Process, Trace
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.read.torch_regions import Region, regions, why
from firstlight.trace.show.verdict import (
    cache_text,
    headline,
    in_other_threads,
    nothing_found,
    unknown,
    where_first_result,
)
from firstlight.trace.wording import OF_JAX, place, sentence_of, short, spent_on

_MAX_FINDINGS = 8
_MAX_FUNCTIONS = 10
_MAX_PACKAGES = 6
_PACKAGE_SECONDS = 0.02
#: Without a terminal (CI, a file): lines that can be read without scrolling sideways.
_PLAIN_WIDTH = 100


def terminal() -> Console:
    """Ours is stderr: stdout belongs to the program."""
    return Terminal(stderr=True, plain_width=_PLAIN_WIDTH)


def print_trace(trace: Trace, console: Console | None = None, title: str = "") -> None:
    """The whole summary."""
    console = console or terminal()
    console.rule(Text(printable(f"firstlight trace {title}".rstrip())), align="left", style="dim")
    console.print(Text(printable(headline(trace)), style="bold"))
    _print_findings(trace, console)
    leading = phases.leading(trace)
    if leading is not None:
        _print_phases(leading, console)
    if trace.functions:
        console.print()
        console.print(_functions(trace.functions, console.width))
    compiled = regions(trace)
    if compiled:
        console.print()
        console.print(_regions(compiled))
    if len(trace.processes) > 1:
        console.print(_processes(trace.processes))
    for sentence in unknown(trace):
        console.print(Text(f"Not known: {printable(sentence)}", style="yellow"))


def print_exceeded(exceeded: Sequence[Excess], console: Console | None = None) -> None:
    """The limits that do not hold, each with its offenders."""
    console = console or terminal()
    for excess in exceeded:
        line = f"firstlight: --{excess.limit}: {excess.sentence}"
        console.print(Text(printable(line), style="bold red"), soft_wrap=True)
        for offender in excess.offenders:
            console.print(Text(printable(f"    {offender}")), soft_wrap=True)


def _print_findings(trace: Trace, console: Console) -> None:
    none = nothing_found(trace)
    if none:
        console.print(Text(printable(none)))
    findings = [finding for finding in trace.findings if not finding.apart]
    source = SourceLines(trace)
    for number, finding in enumerate(findings[:_MAX_FINDINGS], start=1):
        console.print()
        grid = Table.grid(padding=(0, 1))
        grid.add_column(justify="right", no_wrap=True, min_width=2)
        grid.add_column()
        grid.add_row(Text(f"{number}."), _finding(finding, source))
        console.print(grid)
    if len(findings) > 1:
        note = "Each says what it costs at most; they may overlap."
        console.print(Text(f"\n{note}", style="dim"))
    if len(findings) > _MAX_FINDINGS:
        console.print(f"\nand {len(findings) - _MAX_FINDINGS} more in the report.")
    for finding in trace.findings:
        if finding.apart:
            console.print("\nApart from the program:" if findings else "")
            console.print(Padding(_finding(finding, source), (0, 0, 0, 3)))


def _finding(finding: Finding, source: SourceLines) -> Group:
    head = Text.assemble(
        (duration(finding.seconds), "bold yellow"), "  ", (printable(sentence_of(finding)), "bold")
    )
    parts = [head]
    if finding.place:
        where = f"{place(finding.place)}  {source.of(finding.place)}".rstrip()
        parts.append(Text(printable(where), style="dim", overflow="fold"))
    parts.append(Text(printable(f"→ {finding.remedy}")))
    return Group(*parts)


def _print_phases(process: Process, console: Console) -> None:
    moment = process.first_result_seconds
    by_kind = phases.until(process, moment)
    total = sum(by_kind.values())
    if not total:
        return
    looks = {kind: phases.LOOKS.get(kind, (kind, "", "", "?")) for kind in by_kind}
    signs = {kind: "█" if console.is_terminal else look[3] for kind, look in looks.items()}
    width, done, bar = min(console.width, 100), 0.0, Text()
    for kind, value in by_kind.items():  # the last one takes what rounding leaves
        done += value
        bar.append(signs[kind] * (round(done / total * width) - len(bar)), looks[kind][2])
    console.print()
    console.print(Text(spent_on(process, total), style="bold"))
    console.print(bar)
    legend = [
        Text.assemble(
            (f"{signs[kind]} ", looks[kind][2]),
            f"{looks[kind][0]} {duration(value)} ({value / total:.0%})",
        )
        for kind, value in sorted(by_kind.items(), key=lambda item: -item[1])
    ]
    console.print(Columns(legend, padding=(0, 2)))
    imported = _imported(process, moment)
    beside = f"Imports, each package for itself: {imported}." if imported else ""
    for line in filter(None, (in_other_threads(process), beside)):
        console.print(Text(printable(line)))
    where = where_first_result(process)
    if where is not None:
        console.print(Text(printable(where), style="dim"))


def _imported(process: Process, moment: float | None) -> str:
    """The packages that took longest until then, and the sum of all others."""
    until_then = [p for p in process.imports if moment is None or p.begin_seconds < moment]
    shown = [p for p in until_then[:_MAX_PACKAGES] if p.seconds >= _PACKAGE_SECONDS]
    words = [f"{p.name} {duration(p.seconds)}" for p in shown]
    others = until_then[len(shown) :]
    if shown and others:
        words.append(f"{counted(len(others), 'other')} {duration(sum(p.seconds for p in others))}")
    return ", ".join(words)


#: Columns of words; all others are numbers.
_WORDS = frozenset(
    ("", "function", "defined", "cache", "what happened", "where", "why again", "setting")
)


def table(title: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[str], str]]) -> Table:
    """rows: cells, and the style of the row."""
    made = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,  # room for names
    )
    for name in columns:
        widest = 36 if name == "function" else None
        if name in _WORDS:
            made.add_column(name, overflow="fold", max_width=widest)
        else:
            made.add_column(name, justify="right", no_wrap=True)
    for cells, style in rows:
        made.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    return made


def _functions(functions: Sequence[Function], width: int) -> Table:
    stages = width >= 92
    by_stage = STAGES if stages else ()
    shown = functions[:_MAX_FUNCTIONS]
    return table(
        _title("Functions", "most expensive", len(functions)),
        ("function", "defined", "compiles", "again", *by_stage, "total", "cache"),
        [(_row(function, stages), "dim" if function.library else "") for function in shown],
    )


def _title(what: str, which: str, number: int) -> str:
    some = f", the {_MAX_FUNCTIONS} {which} of {number}"
    return what + (some if number > _MAX_FUNCTIONS else "")


def _row(function: Function, stages: bool) -> list[str]:
    return [
        _bare(function.name),
        OF_JAX if function.library else short(function.place),
        str(sum(c.compiled for c in function.compiles)),
        str(function.recompiles or "") if not function.library else "",
        *map(duration, function.stage_seconds.values() if stages else ()),
        duration(function.seconds),
        cache_text(function),
    ]


def _bare(name: str) -> str:
    """Without the function that it is defined in: the line says that, and the report has room."""
    return name.rpartition("<locals>.")[2]


def _regions(compiled: Sequence[Region]) -> Table:
    rows = []
    for one in sorted(compiled, key=lambda one: -one.own_seconds)[:_MAX_FUNCTIONS]:
        imports = one.seconds - one.own_seconds
        times = (duration(one.own_seconds), duration(imports) if imports >= 0.0005 else "")
        rows.append(((_bare(one.readable), short(one.place), *times, why(one)), ""))
    columns = ("function", "defined", "compiling", "imports", "what happened")
    return table(_title("Compiled by torch", "longest", len(compiled)), columns, rows)


def _processes(processes: Sequence[Process]) -> Table:
    columns = ("pid", "rank", "started at", "first result at", "wall", "compiling")
    rows = [
        (
            str(p.pid),
            p.rank or "",
            duration(p.starts_at_seconds),
            "none" if p.first_result_seconds is None else duration(p.first_result_seconds),
            "did not end" if p.wall_seconds is None else duration(p.wall_seconds),
            duration(sum(p.phases_seconds.get(stage, 0.0) for stage in STAGES)),
        )
        for p in processes
    ]
    title = counted(len(processes), "process", "processes")
    return table(title, columns, [(row, "") for row in rows])
