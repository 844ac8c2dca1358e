"""A trace on the terminal: the verdict, then where the time went, then the functions."""

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
from firstlight.trace.findings.ci_limits import Excess
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
_PLAIN_WIDTH = 100  # without a terminal (CI, a file)
#: Columns of text; all others are numbers.
_WORDS = frozenset(
    ("", "function", "defined", "cache", "what happened", "where", "why again", "setting")
)


def terminal() -> Console:
    """A console on stderr: stdout belongs to the program."""
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
        console.print("", _functions(trace.functions, console.width), sep="\n")
    compiled = regions(trace)
    if compiled:
        console.print("", _regions(compiled), sep="\n")
    if len(trace.processes) > 1:
        console.print(_processes(trace.processes))
    for sentence in unknown(trace):
        console.print(Text(f"Not known: {printable(sentence)}", style="yellow"))


def print_exceeded(exceeded: Sequence[Excess], console: Console | None = None) -> None:
    """Print the limits that are exceeded, each with its offenders."""
    console = console or terminal()
    for excess in exceeded:
        line = f"firstlight: --{excess.limit}: {excess.sentence}"
        console.print(Text(printable(line), style="bold red"), soft_wrap=True)
        for offender in excess.offenders:
            console.print(Text(printable(f"    {offender}")), soft_wrap=True)


def _print_findings(trace: Trace, console: Console) -> None:
    none, source = nothing_found(trace), SourceLines(trace)
    if none:
        console.print(Text(printable(none)))
    findings = [finding for finding in trace.findings if not finding.apart]
    for number, finding in enumerate(findings[:_MAX_FINDINGS], start=1):
        grid = Table.grid(padding=(0, 1))
        grid.add_column(justify="right", no_wrap=True, min_width=2)
        grid.add_column()
        grid.add_row(Text(f"{number}."), _finding(finding, source))
        console.print("", grid, sep="\n")
    if len(findings) > 1:
        note = "Costs are upper bounds; they may overlap."
        console.print(Text(f"\n{note}", style="dim"))
    if len(findings) > _MAX_FINDINGS:
        console.print(f"\nand {len(findings) - _MAX_FINDINGS} more in the report.")
    for finding in trace.findings:
        if finding.apart:
            console.print("\nApart from the program:" if findings else "")
            console.print(Padding(_finding(finding, source), (0, 0, 0, 3)))


def _finding(finding: Finding, source: SourceLines) -> Group:
    cost, what = duration(finding.seconds), printable(sentence_of(finding))
    parts = [Text.assemble((cost, "bold yellow"), "  ", (what, "bold"))]
    if finding.place:
        where = f"{place(finding.place)}  {source.of(finding.place)}".rstrip()
        parts.append(Text(printable(where), style="dim", overflow="fold"))
    return Group(*parts, Text(printable(f"→ {finding.remedy}")))


def _print_phases(process: Process, console: Console) -> None:
    by_kind = phases.until(process, process.first_result_seconds)
    total = sum(by_kind.values())
    if not total:
        return
    width, done, bar, legend = min(console.width, 100), 0.0, Text(), {}
    for kind, value in by_kind.items():
        name, _, style, sign = phases.LOOKS.get(kind, (kind, "", "", "?"))
        sign = "█" if console.is_terminal else sign
        done += value  # rounding the sum makes the bar exactly this wide
        bar.append(sign * (round(done / total * width) - len(bar)), style)
        words = f"{name} {duration(value)} ({value / total:.0%})"
        legend[kind] = Text.assemble((f"{sign} ", style), words)
    console.print("", Text(spent_on(process, total), style="bold"), bar, sep="\n")
    longest_first = sorted(legend, key=lambda kind: -by_kind[kind])
    console.print(Columns([legend[kind] for kind in longest_first], padding=(0, 2)))
    for line in filter(None, (in_other_threads(process), _imported(process))):
        console.print(Text(printable(line)))
    where = where_first_result(process)
    if where is not None:
        console.print(Text(printable(where), style="dim"))


def _imported(process: Process) -> str:
    """The longest imports before the first result, by package, and the sum of the others."""
    first = process.first_result_seconds
    until_then = [p for p in process.imports if first is None or p.begin_seconds < first]
    shown = [p for p in until_then[:_MAX_PACKAGES] if p.seconds >= _PACKAGE_SECONDS]
    words = [f"{p.name} {duration(p.seconds)}" for p in shown]
    others = until_then[len(shown) :]
    if others:
        words.append(f"{counted(len(others), 'other')} {duration(sum(p.seconds for p in others))}")
    return f"Imports by package: {', '.join(words)}." if shown else ""


def table(title: str, columns: Sequence[str], rows: Iterable[tuple[Sequence[str], str]]) -> Table:
    """A table in the style of the reports. rows: (cells, style of the row)."""
    made = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,  # leaves room for names
    )
    for name in columns:
        if name in _WORDS:
            made.add_column(name, overflow="fold", max_width=36 if name == "function" else None)
        else:
            made.add_column(name, justify="right", no_wrap=True)
    for cells, style in rows:
        made.add_row(*(Text(printable(cell)) for cell in cells), style=style)
    return made


def _functions(functions: Sequence[Function], width: int) -> Table:
    by_stage = STAGES if width >= 92 else ()
    rows = [
        (
            (
                _bare(f.name),
                OF_JAX if f.library else short(f.place),
                str(sum(c.compiled for c in f.compiles)),
                str(f.recompiles or "") if not f.library else "",
                *(duration(f.stage_seconds[stage]) for stage in by_stage),
                duration(f.seconds),
                cache_text(f),
            ),
            "dim" if f.library else "",
        )
        for f in functions[:_MAX_FUNCTIONS]
    ]
    columns = ("function", "defined", "compiles", "again", *by_stage, "total", "cache")
    return table(_title("Functions", "most expensive", len(functions)), columns, rows)


def _title(what: str, which: str, number: int) -> str:
    some = f", the {_MAX_FUNCTIONS} {which} of {number}"
    return what + (some if number > _MAX_FUNCTIONS else "")


def _bare(name: str) -> str:
    """The name without enclosing functions, which the line shows."""
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
