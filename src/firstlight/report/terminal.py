"""A run and a machine as tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from firstlight.present import quantities
from firstlight.present.terminal import Terminal, escape
from firstlight.records import PHASES, BreakEven, CaseSummary, Estimate, Run

_STATUS_STYLE = {"ok": "", "skipped": "dim", "incomplete": "yellow", "unproven": "yellow"}


def print_run(run: Run, console: Console | None = None) -> None:
    """One table per workload and size, then the protocol that all numbers stand under."""
    console = console or Terminal()
    for title, rows in _groups(run):
        console.print(_table(title, rows, console.width))
        for line in _remarks(rows):
            console.print(line)
        console.print()
    console.print(_protocol(run), style="dim")
    for warning in run.warnings:
        console.print(f"Note: {escape(warning)}.", style="yellow")


def run_tables(run: Run, width: int = 110) -> str:
    """The tables as plain text, without what every number stands under."""
    import io

    console = Console(file=io.StringIO(), width=width, no_color=True)
    for title, rows in _groups(run):
        console.print(_table(title, rows, width))
        for line in _remarks(rows):
            console.print(line)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def _groups(run: Run) -> Iterator[tuple[str, list[CaseSummary]]]:
    """(title, cases) of every workload and size."""
    groups: dict[tuple[str, str], list[CaseSummary]] = {}
    for case in run.cases:
        groups.setdefault((case.workload, case.size), []).append(case)
    for (workload, size), rows in groups.items():
        yield f"{workload} [{size}]{_essentials(rows)}", rows


def _essentials(cases: Sequence[CaseSummary]) -> str:
    """What was computed on, as far as the cases of a table share it."""
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
    """The phase that takes most of the time to the first result, with its share."""
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


#: Columns with the width of the terminal from which on they are shown.
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
    shown = [(name, cell) for name, least, cell in _COLUMNS if width >= least]
    for name, _ in shown:
        right = name in _NUMBERS
        table.add_column(name, justify="right" if right else "left", no_wrap=width >= 104)
    table.add_column("status")
    for case in cases:
        # Without a protocol no number is printed.
        hidden = case.protocol is None
        cells = [cell(case) if not hidden or i < 2 else "" for i, (_, cell) in enumerate(shown)]
        table.add_row(*cells, case.status, style=_STATUS_STYLE.get(case.status, "red"))
    return table


def _remarks(cases: Sequence[CaseSummary]) -> Iterator[str]:
    for case in cases:
        if case.status not in ("ok", "skipped") and case.reason:
            yield f"  [bold]{escape(case.case)}[/bold]: {escape(case.reason)}"
        if case.status not in ("ok", "skipped") and case.stderr_tail:
            for line in case.stderr_tail.strip().splitlines()[-3:]:
                yield f"      {escape(line)}"
        if case.warm_reason:
            yield f"  {escape(case.case)}: no warm number, {escape(case.warm_reason)}"
        if case.status == "ok" and case.correctness and case.correctness.tolerance is None:
            yield f"  {escape(case.case)}: no reference, the result was only checked to be finite"
        if case.note and case.status == "ok":
            yield f"  {escape(case.case)}: {escape(case.note)}{_counted(case)}"


def _counted(case: CaseSummary) -> str:
    parts = []
    compiles = case.counts.get("compiles")
    if compiles:
        parts.append(quantities.counted(compiles, "compilation"))
    if case.correctness and case.correctness.max_relative_error is not None:
        parts.append(f"relative error {case.correctness.max_relative_error:.1e}")
    return f": {', '.join(parts)}" if parts else ""


def _protocol(run: Run) -> str:
    confidences = [c.cold_seconds.confidence for c in run.cases if c.cold_seconds]
    least = min(confidences, default=0.0)
    level = f" with exact intervals of {least:.1%} or more" if least >= 0.5 else ""
    return (
        f"Median over processes{level}. First result: fresh "
        "process, from spawn to the first synchronised result, every process counted. Warm call: "
        f"the same process afterwards, synchronised, steady part. {_break_even_level(run)}"
        f"{_processes(run)}"
        "Cache policies are proven per process; see the report for every protocol."
    )


def _break_even_level(run: Run) -> str:
    levels = [c.break_even_calls.confidence for c in run.cases if c.break_even_calls]
    if not levels:
        return ""
    return f"Pays after calls: intervals that hold with at least {min(levels):.1%}. "


def _processes(run: Run) -> str:
    done = sum(case.processes_ok for case in run.cases)
    return f"Timed processes: {done}; cases: {len(run.cases)}. "


def print_system(
    harness: Mapping[str, Any],
    host: Mapping[str, Any],
    warnings: Sequence[str],
    console: Console | None = None,
) -> None:
    """What is recorded of the machine, as one table."""
    console = console or Terminal()
    table = Table(show_header=False, pad_edge=False, box=None)
    for key, value in _flat({"harness": harness, **host}):
        table.add_row(f"[bold]{escape(key)}[/bold]", escape(value))
    console.print(table)
    for warning in warnings:
        console.print(f"Note: {escape(warning)}.", style="yellow")


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
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
