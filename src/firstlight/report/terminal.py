"""A run and a machine as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from firstlight.records import PHASES, BreakEven, CaseSummary, Estimate, Run
from firstlight.report import quantities

_STATUS_STYLE = {"ok": "", "skipped": "dim", "incomplete": "yellow", "unproven": "yellow"}


def print_run(run: Run, console: Console | None = None) -> None:
    """One table a workload and size, then the protocol that all numbers stand under."""
    console = console or Console(width=_width())
    for (workload, size), cases in groupby(run.cases, key=lambda c: (c.workload, c.size)):
        rows = list(cases)
        console.print(_table(f"{workload} [{size}]", rows))
        for line in _remarks(rows):
            console.print(line, highlight=False)
        console.print()
    console.print(_protocol(run), highlight=False, style="dim")
    for warning in run.warnings:
        console.print(f"Note: {escape(warning)}.", highlight=False, style="yellow")


def _width() -> int | None:
    """Without a terminal (CI, a pipe) wide enough that nothing is cut."""
    import sys

    return None if sys.stdout.isatty() else 132


def _table(title: str, cases: Sequence[CaseSummary]) -> Table:
    table = Table(title=escape(title), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("backend", no_wrap=True)
    table.add_column("cache")
    table.add_column("first result", justify="right")
    table.add_column("of which", no_wrap=True)
    table.add_column("warm call", justify="right")
    table.add_column("compiling pays", justify="right")
    table.add_column("peak host", justify="right")
    table.add_column("status", no_wrap=True)
    for case in cases:
        table.add_row(*_row(case), style=_STATUS_STYLE.get(case.status, "red"))
    return table


def _row(case: CaseSummary) -> tuple[str, ...]:
    if case.protocol is None:  # without a protocol no number is printed
        return (escape(case.backend), case.cache, *[""] * 5, case.status)
    return (
        escape(case.backend),
        case.cache,
        _estimate(case.cold_seconds),
        _largest_phases(case),
        _warm(case),
        _break_even(case),
        quantities.size(case.peak_host_bytes) if case.peak_host_bytes else "",
        case.status if case.status == "ok" else f"[bold]{case.status}[/bold]",
    )


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    low, high = quantities.seconds(estimate.low), quantities.seconds(estimate.high)
    return f"{quantities.seconds(estimate.median)} ({low} … {high})"


def _warm(case: CaseSummary) -> str:
    estimate = case.warm_call_seconds
    if estimate is None:
        return "no steady state" if case.throughput_calls_per_second else ""
    word = "" if estimate.steady_class == "flat" else f" {estimate.steady_class}"
    return _estimate(estimate) + word


def _largest_phases(case: CaseSummary) -> str:
    """The two phases that take most of the time to the first result."""
    if case.cold_seconds is None:
        return ""
    known = {p: s for p in PHASES if (s := case.phases_seconds.get(p)) is not None}
    largest = sorted(known, key=lambda p: -known[p])[:2]
    return ", ".join(f"{p} {known[p] / case.cold_seconds.median:.0%}" for p in largest)


def _break_even(case: CaseSummary) -> str:
    even: BreakEven | None = case.break_even_calls
    if even is None:
        return ""
    if even.calls == "never":
        return f"never (vs {even.against})"
    if even.calls == 1:
        return f"at once (vs {even.against})"
    low, high = quantities.calls(even.low), quantities.calls(even.high)
    return f"from call {quantities.calls(even.calls)} ({low} … {high}) vs {even.against}"


def _remarks(cases: Sequence[CaseSummary]) -> Iterator[str]:
    for case in cases:
        if case.status not in ("ok", "skipped") and case.reason:
            yield f"  [bold]{escape(case.case)}[/bold]: {escape(case.reason)}"
        if case.status not in ("ok", "skipped") and case.stderr_tail:
            for line in case.stderr_tail.strip().splitlines()[-3:]:
                yield f"      {escape(line)}"
        if case.note and case.status == "ok":
            yield f"  {escape(case.case)}: {escape(case.note)}{_counted(case)}"


def _counted(case: CaseSummary) -> str:
    parts = []
    compiles = case.counts.get("compiles")
    if compiles:
        parts.append(f"{compiles} compilation(s)")
    if case.correctness and case.correctness.max_relative_error is not None:
        parts.append(f"relative error {case.correctness.max_relative_error:.1e}")
    return f": {', '.join(parts)}" if parts else ""


def _protocol(run: Run) -> str:
    confidences = [c.cold_seconds.confidence for c in run.cases if c.cold_seconds]
    level = f"{min(confidences):.1%}" if confidences else "–"
    return (
        f"Median over processes with an exact interval ({level} or more). First result: fresh "
        "process, from spawn to the first synchronised result, every process counted. Warm call: "
        f"the same process afterwards, synchronised, steady part. {_processes(run)}"
        "Cache policies are proven per process; see the report for every protocol."
    )


def _processes(run: Run) -> str:
    done = sum(case.processes_ok for case in run.cases)
    return f"{done} timed processes, {len(run.cases)} cases. "


def print_system(
    harness: Mapping[str, Any],
    host: Mapping[str, Any],
    warnings: Sequence[str],
    console: Console | None = None,
) -> None:
    """What is recorded of the machine, as one table."""
    console = console or Console(width=_width())
    table = Table(show_header=False, pad_edge=False, box=None)
    for key, value in _flat({"harness": harness, **host}):
        table.add_row(f"[bold]{escape(key)}[/bold]", escape(value))
    console.print(table)
    for warning in warnings:
        console.print(f"Note: {escape(warning)}.", highlight=False, style="yellow")


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
        yield name, "none" if value in (None, {}, []) else str(value)
