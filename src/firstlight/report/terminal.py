"""Tables of a run and of a machine on the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from firstlight.present import quantities
from firstlight.present.terminal import Terminal, escape
from firstlight.records import PHASES, BreakEven, CaseSummary, Estimate, JsonObject, Run
from firstlight.report.admission import by_workload
from firstlight.report.answer import tier_break_even

_STATUS_STYLE = {"ok": "", "skipped": "dim", "incomplete": "yellow", "unproven": "yellow"}


def print_run(run: Run, console: Console | None = None) -> None:
    """Print one table per workload and size, then the common protocol and the warnings."""
    console = console or Terminal()
    _print_tables(run, console, after="\n")
    console.print(_protocol(run), style="dim")
    _print_notes(run.warnings, console)


def run_tables(run: Run) -> str:
    """The tables as plain text, without protocol and warnings."""
    out = io.StringIO()
    _print_tables(run, Console(file=out, width=110, no_color=True))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _print_tables(run: Run, console: Console, after: str = "") -> None:
    for (workload, size), cases in by_workload(run.cases).items():
        title = f"{workload} [{size}]{_essentials(cases)}"
        console.print(_table(title, cases, console.width))
        for line in _remarks(cases):
            console.print(line)
        console.print(end=after)


def _print_notes(warnings: Sequence[str], console: Console) -> None:
    for warning in warnings:
        console.print(f"Note: {escape(warning)}.", style="yellow")


def _essentials(cases: Sequence[CaseSummary]) -> str:
    """The parameters and data of a table's cases."""
    protocol = next((case.protocol for case in cases if case.protocol), None)
    if protocol is None:
        return ""
    values = [f"{name}={value}" for name, value in protocol.parameters.items()]
    dtypes = sorted({str(item["dtype"]) for item in protocol.data})
    data = [*dtypes, quantities.size(protocol.data_bytes)] if protocol.data else []
    return "".join(f" · {part}" for part in (", ".join(values), " ".join(data)) if part)


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    middle, ends = quantities.interval(estimate)
    return quantities.unbroken(f"{middle} {escape(ends)}" if ends else f"{middle} n={estimate.n}")


def _steady_class(case: CaseSummary) -> str:
    return case.warm_call_seconds.steady_class if case.warm_call_seconds else case.warm_class or ""


def _largest_phase(case: CaseSummary) -> str:
    """The longest phase, with its share of the time to first result."""
    if case.cold_seconds is None:
        return ""
    known = {p: s for p in PHASES if (s := case.phases_seconds.get(p)) is not None}
    largest = max(known, key=lambda p: known[p])
    return f"{largest} {known[largest] / case.cold_seconds.median:.0%}"


def _break_even(even: BreakEven | None) -> str:
    if even is None:
        return ""
    if even.calls == "never" == even.low:
        return "never"
    low, high = quantities.calls(even.low), quantities.calls(even.high)
    return quantities.unbroken(f"{quantities.calls(even.calls)} {escape(f'[{low}, {high}]')}")


#: Columns: name, minimum width of the terminal, and how to read a cell.
_COLUMNS: tuple[tuple[str, int, Callable[[CaseSummary], str]], ...] = (
    ("backend", 0, lambda c: escape(c.backend)),
    ("cache", 0, lambda c: c.cache),
    ("first result", 0, lambda c: _estimate(c.cold_seconds)),
    ("mostly", 118, _largest_phase),
    ("warm call", 0, lambda c: _estimate(c.warm_call_seconds) or (c.warm_class or "")),
    ("class", 142, _steady_class),
    ("pays after calls", 0, lambda c: _break_even(c.break_even_calls)),
    ("vs", 128, lambda c: escape(c.break_even_calls.against) if c.break_even_calls else ""),
    ("peak host", 150, lambda c: quantities.size(c.peak_host_bytes) if c.peak_host_bytes else ""),
)
_NUMBERS = ("first result", "warm call", "pays after calls", "peak host")


def _table(title: str, cases: Sequence[CaseSummary], width: int) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    shown = [(name, cell) for name, minimum, cell in _COLUMNS if width >= minimum]
    for name, _ in shown:
        right = name in _NUMBERS
        table.add_column(name, justify="right" if right else "left", no_wrap=width >= 104)
    table.add_column("status")
    for case in cases:
        # Without a protocol, only backend and cache are printed.
        printed = shown if case.protocol is not None else shown[:2]
        cells = [cell(case) for _, cell in printed] + [""] * (len(shown) - len(printed))
        table.add_row(*cells, case.status, style=_STATUS_STYLE.get(case.status, "red"))
    return table


def _remarks(cases: Sequence[CaseSummary]) -> Iterator[str]:
    for case in cases:
        name, ok = escape(case.case), case.status == "ok"
        if not ok and case.status != "skipped":
            if case.reason:
                yield f"  [bold]{name}[/bold]: {escape(case.reason)}"
            for line in (case.stderr_tail or "").strip().splitlines()[-3:]:
                yield f"      {escape(line)}"
        if ok and (even := tier_break_even(case)):
            yield f"  {name}:{even}"
        if case.warm_reason:
            yield f"  {name}: no warm number, {escape(case.warm_reason)}"
        if ok and case.correctness and case.correctness.tolerance is None:
            yield f"  {name}: no reference, the result was only checked to be finite"
        if case.note and ok:
            yield f"  {name}: {escape(case.note)}{_counted(case)}"


def _counted(case: CaseSummary) -> str:
    parts = []
    if compiles := case.counts.get("compiles"):
        parts.append(quantities.counted(compiles, "compilation"))
    if case.correctness and case.correctness.max_relative_error is not None:
        parts.append(f"relative error {case.correctness.max_relative_error:.1e}")
    return f": {', '.join(parts)}" if parts else ""


def _protocol(run: Run) -> str:
    lowest = min((c.cold_seconds.confidence for c in run.cases if c.cold_seconds), default=0.0)
    level = f" with exact intervals of at least {lowest:.1%}" if lowest >= 0.5 else ""
    levels = [c.break_even_calls.confidence for c in run.cases if c.break_even_calls]
    pays = f"Pays after calls: intervals of at least {min(levels, default=0):.1%}. "
    return (
        f"Median over processes{level}. First result: fresh "
        "process, from spawn to the first synchronised result, no process dropped. Warm call: "
        f"the same process afterwards, synchronised, steady part. {pays if levels else ''}"
        f"Timed processes: {sum(case.processes_ok for case in run.cases)}; "
        f"cases: {len(run.cases)}. "
        "Cache policies are proven per process; see the report for every protocol."
    )


def print_system(
    harness: JsonObject,
    host: JsonObject,
    warnings: Sequence[str],
    console: Console | None = None,
) -> None:
    """Print what is recorded of the machine, as one table."""
    console = console or Terminal()
    table = Table(show_header=False, pad_edge=False, box=None)
    for key, value in _flat({"harness": harness, **host}):
        table.add_row(f"[bold]{escape(key)}[/bold]", escape(value))
    console.print(table)
    _print_notes(warnings, console)


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
        for number, item in enumerate(value):
            yield from _flat(item, f"{name}[{number}]")
    elif name.endswith("_bytes") and isinstance(value, int):
        yield name, quantities.size(value)
    else:
        yield name, "unknown" if value is None else "none" if value in ({}, []) else str(value)
