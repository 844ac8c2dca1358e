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
from firstlight.trace.read.model import Finding, Function, Process, Trace
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.read.torch_regions import Region, regions, why
from firstlight.trace.show.verdict import headline, nothing_found, unknown, where_first_result
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
    console.print()
    console.print(Text(spent_on(process, total), style="bold"))
    console.print(_bar(by_kind, total, min(console.width, 100), console.is_terminal))
    legend = []
    for kind, value in sorted(by_kind.items(), key=lambda item: -item[1]):
        name, _, style, sign = phases.LOOKS.get(kind, (kind, "", "", "?"))
        mark = "█" if console.is_terminal else sign
        words = f"{name} {duration(value)} ({value / total:.0%})"
        legend.append(Text.assemble((f"{mark} ", style), words))
    console.print(Columns(legend, padding=(0, 2)))
    elsewhere = phases.in_other_threads(process, moment)
    if elsewhere:
        spent = ", ".join(f"{phases.name_of(k)} {duration(v)}" for k, v in elsewhere.items())
        threads = counted(len(process.threads), "other thread")
        console.print(f"At the same time, in {threads}: {spent}.")
    imported = _imported(process, moment)
    if imported:
        console.print(Text(printable(f"Imports, each package for itself: {imported}.")))
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


def _bar(by_kind: dict[str, float], total: float, width: int, coloured: bool) -> Text:
    """A line of which every kind has its share; the last one takes what rounding leaves."""
    bar, done, used = Text(), 0.0, 0
    for kind, value in by_kind.items():
        _, _, style, sign = phases.LOOKS.get(kind, (kind, "", "", "?"))
        done += value
        until = round(done / total * width)
        bar.append(("█" if coloured else sign) * (until - used), style)
        used = until
    return bar


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
    shown = functions[:_MAX_FUNCTIONS]
    some = "" if len(shown) == len(functions) else f", the {len(shown)} most expensive of "
    stages = width >= 92
    by_stage = ("trace", "lower", "compile") if stages else ()
    return table(
        f"Functions{some}{len(functions) if some else ''}",
        ("function", "defined", "compiles", "again", *by_stage, "total", "cache"),
        [(_row(function, stages), "dim" if function.library else "") for function in shown],
    )


def _row(function: Function, stages: bool) -> list[str]:
    cache = function.cache_counts
    return [
        _bare(function.name),
        OF_JAX if function.library else short(function.place),
        str(sum(c.compiled for c in function.compiles)),
        str(function.recompiles or "") if not function.library else "",
        *([duration(s) for s in function.stage_seconds.values()] if stages else []),
        duration(function.seconds),
        "off" if set(cache) == {"off"} else ", ".join(f"{n} {s}" for s, n in cache.items()),
    ]


def _bare(name: str) -> str:
    """Without the function that it is defined in: the line says that, and the report has room."""
    return name.rpartition("<locals>.")[2]


def _regions(compiled: Sequence[Region]) -> Table:
    shown = sorted(compiled, key=lambda one: -one.own_seconds)[:_MAX_FUNCTIONS]
    some = "" if len(shown) == len(compiled) else f", the {len(shown)} longest of {len(compiled)}"
    rows = []
    for one in shown:
        imports = one.seconds - one.own_seconds
        times = (duration(one.own_seconds), duration(imports) if imports >= 0.0005 else "")
        rows.append(((_bare(one.readable), short(one.place), *times, why(one)), ""))
    columns = ("function", "defined", "compiling", "imports", "what happened")
    return table(f"Compiled by torch{some}", columns, rows)


def _processes(processes: Sequence[Process]) -> Table:
    columns = ("pid", "rank", "started at", "first result at", "wall", "compiling")
    rows = [
        (
            str(p.pid),
            p.rank or "",
            duration(p.starts_at_seconds),
            duration(p.first_result_seconds) if p.first_result_seconds is not None else "none",
            duration(p.wall_seconds) if p.wall_seconds is not None else "did not end",
            duration(sum(p.phases_seconds.get(k, 0.0) for k in ("trace", "lower", "compile"))),
        )
        for p in processes
    ]
    title = counted(len(processes), "process", "processes")
    return table(title, columns, [(row, "") for row in rows])
