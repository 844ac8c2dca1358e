"""All cases in one table: every number of the summary, with its exact value kept in the cell."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firstlight.present import quantities
from firstlight.present.palette import swatch
from firstlight.records import PHASES, CaseSummary, Estimate
from firstlight.report.admission import Workload, flag, hollow
from firstlight.report.bars import phase_name


@dataclass(frozen=True)
class Cell:
    """What is shown, what it sorts by, and what a resting pointer tells."""

    shown: str = quantities.ABSENT
    value: float | str | None = None
    tip: str | None = None
    flagged: bool = False


@dataclass(frozen=True)
class Column:
    """A heading under its group, and how to read a case."""

    group: str
    key: str
    heading: str
    read: Callable[[CaseSummary], Cell]

    @property
    def label(self) -> str:
        """What it is called away from its group."""
        return f"{self.group}: {self.heading}"


def _estimate(value: Estimate | None, units: quantities.Units | None, suffix: str = "") -> Cell:
    if value is None:
        return Cell()
    shown, span = quantities.interval(value, units)
    return Cell(f"{shown} {span}{suffix}".strip(), value.median, f"n={value.n}")


def _cold(case: CaseSummary) -> Cell:
    return _estimate(case.cold_seconds, quantities.TIME_UNITS)


def _n(case: CaseSummary) -> Cell:
    if case.cold_seconds is None:
        return Cell()
    planned = case.processes_planned
    shown = f"{case.cold_seconds.n}"
    if planned > case.cold_seconds.n:
        shown += f" of {planned}"
    return Cell(shown, case.cold_seconds.n)


def _phase(phase: str) -> Callable[[CaseSummary], Cell]:
    def read(case: CaseSummary) -> Cell:
        value = case.phases_seconds.get(phase)
        if value is None:
            tip = "this framework has no such phase" if case.phases_seconds else None
            return Cell(tip=tip)
        return Cell(quantities.seconds(value), value)

    return read


def _unattributed(case: CaseSummary) -> Cell:
    value = case.unattributed_seconds
    return Cell() if value is None else Cell(quantities.seconds(value), value)


def _warm(case: CaseSummary) -> Cell:
    return _estimate(case.warm_call_seconds, quantities.TIME_UNITS)


def _steady_class(case: CaseSummary) -> Cell:
    warm = case.warm_call_seconds
    found = warm.steady_class if warm is not None else case.warm_class
    return Cell(found, found, case.warm_reason) if found else Cell()


def _throughput(case: CaseSummary) -> Cell:
    cell = _estimate(case.throughput_calls_per_second, None, " /s")
    tip = f"{case.batch_calls} calls between synchronisations" if case.batch_calls else None
    return Cell(cell.shown, cell.value, tip)


def _host_memory(case: CaseSummary) -> Cell:
    value = case.peak_host_bytes
    return Cell() if value is None else Cell(quantities.size(value), value)


def _device_memory(case: CaseSummary) -> Cell:
    value = case.peak_device_bytes
    return Cell() if value is None else Cell(quantities.size(value), value)


def _compiles(case: CaseSummary) -> Cell:
    value = case.counts.get("compiles")
    others = ", ".join(f"{k} {v}" for k, v in case.counts.items() if v is not None)
    return Cell(tip=others or None) if value is None else Cell(str(value), value, others)


def _break_even(case: CaseSummary) -> Cell:
    even = case.break_even_calls
    if even is None:
        return Cell()
    shown = quantities.calls(even.calls)
    if (even.low, even.high) != ("never", "never"):
        shown += f" [{quantities.calls(even.low)}, {quantities.calls(even.high)}]"
    tip = f"against {even.against}, the last to be overtaken; {even.confidence * 100:.3g} %"
    return Cell(shown, even.calls, tip)


def _error(case: CaseSummary) -> Cell:
    found = case.correctness
    if found is None:
        return Cell()
    if found.max_relative_error is None and found.tolerance is None:
        return Cell("unchecked", None, found.reference)
    error, most = found.max_relative_error, found.tolerance
    shown = f"{quantities.scientific(error)} ≤ {quantities.scientific(most)}"
    if not found.passed:
        shown = shown.replace("≤", "against")
    return Cell(shown, error, found.reference, not found.passed)


def _cache(case: CaseSummary) -> Cell:
    proof = case.cache_proof
    if proof is None:
        return Cell()
    parts = ["proven" if proof.proven else "not proven"]
    if proof.entries_before is not None or proof.entries_after is not None:
        parts.append(f"{_whole(proof.entries_before)}→{_whole(proof.entries_after)} entries")
    if proof.requests is not None:
        parts.append(f"{_whole(proof.hits)}/{proof.requests} hits")
    return Cell(", ".join(parts), parts[0], proof.reason, not proof.proven)


def _whole(value: int | None) -> str:
    return "?" if value is None else str(value)


def columns(cases: Sequence[CaseSummary]) -> list[Column]:
    """The columns of this run: of phases, memory and caches only those that some case has."""
    extra = dict.fromkeys(p for c in cases for p in c.phases_seconds if p not in PHASES)
    found = [
        Column("cold start", "cold", "total [interval]", _cold),
        Column("cold start", "n", "n", _n),
    ]
    found += [
        Column("warm", "warm", "call [interval]", _warm),
        Column("warm", "class", "class", _steady_class),
        Column("warm", "throughput", "throughput", _throughput),
        Column("warm", "break-even", "break-even calls", _break_even),
    ]
    found += [
        Column("phase medians", f"phase-{p}", phase_name(p), _phase(p)) for p in (*PHASES, *extra)
    ]
    found += [
        Column("phase medians", "unattributed", "unattributed", _unattributed),
        Column("peak memory", "host", "host", _host_memory),
        Column("peak memory", "device", "device", _device_memory),
        Column("proof", "compiles", "compiles", _compiles),
        Column("proof", "error", "relative error, tolerance", _error),
        Column("proof", "cache", "cache", _cache),
    ]
    if all(c.peak_device_bytes is None for c in cases):
        found = [c for c in found if c.key != "device"]
    return found


def table(workloads: Sequence[Workload], keys: Sequence[str] | None = None) -> str:
    """The table in its own scrolling box; `keys` names the columns where not all are wanted."""
    cases = [case for workload in workloads for case in workload.cases]
    shown = [c for c in columns(cases) if keys is None or c.key in keys]
    rows = "".join(_row(c, w, shown) for w in workloads for c in w.cases)
    caption = (
        "Medians over fresh processes with their intervals in brackets; a dash is a "
        "phase that the framework does not have or a number that may not be shown."
    )
    return (
        '<div class="scroll" tabindex="0"><table id="cases" class="cards">'
        f"<caption>{caption}</caption><thead>{_head(shown)}</thead><tbody>{rows}</tbody></table></div>"
    )


def _head(shown: Sequence[Column]) -> str:
    groups: dict[str, int] = {}
    for column in shown:
        groups[column.group] = groups.get(column.group, 0) + 1
    top = "".join(f'<th scope="colgroup" colspan="{n}">{g}</th>' for g, n in groups.items())
    names = "".join(
        f'<th scope="col" data-key="{html.escape(c.key)}">{html.escape(c.heading)}</th>'
        for c in shown
    )
    return (
        '<tr><th scope="col" rowspan="2" data-key="case">case</th>'
        f'<th scope="col" rowspan="2" data-key="status">status</th>{top}</tr><tr>{names}</tr>'
    )


def _row(case: CaseSummary, workload: Workload, shown: Sequence[Column]) -> str:
    state = flag(case)
    status = (
        f'<span class="badge">{html.escape(state)}</span>' if state else html.escape(case.status)
    )
    tip = f' title="{html.escape(case.reason)}"' if case.reason else ""
    name = swatch(workload.marks[case.backend], hollow(case)) + html.escape(case.case)
    cells = "".join(_cell(column, column.read(case)) for column in shown)
    return (
        f'<tr data-case="{html.escape(case.case)}" data-status="{html.escape(case.status)}">'
        f'<th scope="row" data-value="{html.escape(case.case)}">'
        f'<a href="#{workload.anchor}">{name}</a></th>'
        f'<td data-key="status" data-label="status" class="deciding"{tip}>{status}</td>{cells}</tr>'
    )


def _cell(column: Column, cell: Cell) -> str:
    value = "" if cell.value is None else f' data-value="{html.escape(str(cell.value))}"'
    tip = "" if not cell.tip else f' title="{html.escape(cell.tip)}"'
    word = "flagged" if cell.flagged else "absent" if cell.shown == quantities.ABSENT else ""
    class_ = f' class="{word}"' if word else ""
    named = f'data-key="{html.escape(column.key)}" data-label="{html.escape(column.label)}"'
    return f"<td {named}{value}{tip}{class_}>{html.escape(cell.shown)}</td>"
