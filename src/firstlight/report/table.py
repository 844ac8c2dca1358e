"""The table of all cases: every number of the summaries, with its exact value in the cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape

from firstlight.present import quantities
from firstlight.present.palette import swatch
from firstlight.records import PHASES, CaseSummary, Estimate
from firstlight.report.admission import Workload, badge, hollow
from firstlight.report.bars import phase_name


@dataclass(frozen=True)
class Cell:
    """A cell: its text, the value it sorts by, and its tooltip."""

    shown: str = quantities.ABSENT
    value: float | str | None = None
    tip: str | None = None
    flagged: bool = False


@dataclass(frozen=True)
class Column:
    """A column: its group, key and heading, and how to read its cell from a case."""

    group: str
    key: str
    heading: str
    read: Callable[[CaseSummary], Cell]


def _estimate(value: Estimate | None) -> Cell:
    if value is None:
        return Cell()
    return Cell(quantities.estimate(value), value.median, f"n={value.n}")


def _seconds(value: float | None, tip: str | None = None) -> Cell:
    return Cell(tip=tip) if value is None else Cell(quantities.seconds(value), value)


def _bytes(value: float | None) -> Cell:
    return Cell() if value is None else Cell(quantities.size(value), value)


def _n(case: CaseSummary) -> Cell:
    if case.cold_seconds is None:
        return Cell()
    n, planned = case.cold_seconds.n, case.processes_planned
    return Cell(f"{n} of {planned}" if planned > n else f"{n}", n)


def _phase(phase: str, case: CaseSummary) -> Cell:
    tip = "this framework has no such phase" if case.phases_seconds else None
    return _seconds(case.phases_seconds.get(phase), tip)


def _unattributed(case: CaseSummary) -> Cell:
    return _seconds(case.unattributed_seconds)


def _steady_class(case: CaseSummary) -> Cell:
    warm = case.warm_call_seconds
    found = warm.steady_class if warm is not None else case.warm_class
    return Cell(found, found, case.warm_reason) if found else Cell()


def _throughput(case: CaseSummary) -> Cell:
    found = case.throughput_calls_per_second
    tip = f"{case.batch_calls} calls between synchronisations" if case.batch_calls else None
    if found is None:
        return Cell(tip=tip)
    return Cell(f"{' '.join(quantities.interval(found, None))} /s", found.median, tip)


def _compiles(case: CaseSummary) -> Cell:
    value = case.counts.get("compiles")
    others = ", ".join(f"{k} {v}" for k, v in case.counts.items() if v is not None)
    return Cell(tip=others) if value is None else Cell(str(value), value, others)


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
    error, allowed = found.max_relative_error, found.tolerance
    if error is None and allowed is None:
        return Cell("unchecked", None, found.reference)
    relation = "≤" if found.passed else "against"
    shown = f"{quantities.scientific(error)} {relation} {quantities.scientific(allowed)}"
    return Cell(shown, error, found.reference, not found.passed)


def _cache(case: CaseSummary) -> Cell:
    proof = case.cache_proof
    if proof is None:
        return Cell()
    before, after, hits = (
        "?" if n is None else n for n in (proof.entries_before, proof.entries_after, proof.hits)
    )
    parts = ["proven" if proof.proven else "not proven"]
    if (before, after) != ("?", "?"):
        parts.append(f"{before}→{after} entries")
    if proof.requests is not None:
        parts.append(f"{hits}/{proof.requests} hits")
    return Cell(", ".join(parts), parts[0], proof.reason, not proof.proven)


def _columns(cases: Sequence[CaseSummary]) -> list[Column]:
    """The columns for these cases: all known phases, further ones, and device memory if used."""
    extra = dict.fromkeys(p for c in cases for p in c.phases_seconds if p not in PHASES)
    found = [
        Column("cold start", "cold", "total [interval]", lambda c: _estimate(c.cold_seconds)),
        Column("cold start", "n", "n", _n),
        Column("warm", "warm", "call [interval]", lambda c: _estimate(c.warm_call_seconds)),
        Column("warm", "class", "class", _steady_class),
        Column("warm", "throughput", "throughput", _throughput),
        Column("warm", "break-even", "break-even calls", _break_even),
        *(
            Column("phase medians", f"phase-{p}", phase_name(p), partial(_phase, p))
            for p in (*PHASES, *extra)
        ),
        Column("phase medians", "unattributed", "unattributed", _unattributed),
        Column("peak memory", "host", "host", lambda c: _bytes(c.peak_host_bytes)),
        Column("peak memory", "device", "device", lambda c: _bytes(c.peak_device_bytes)),
        Column("proof", "compiles", "compiles", _compiles),
        Column("proof", "error", "relative error, tolerance", _error),
        Column("proof", "cache", "cache", _cache),
    ]
    on_device = any(c.peak_device_bytes is not None for c in cases)
    return [column for column in found if on_device or column.key != "device"]


def table(workloads: Sequence[Workload], keys: Sequence[str] | None = None) -> str:
    """The table in a scrolling box; `keys` selects columns."""
    cases = [case for workload in workloads for case in workload.cases]
    shown = [c for c in _columns(cases) if keys is None or c.key in keys]
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
    groups = [column.group for column in shown]
    top = "".join(
        f'<th scope="colgroup" colspan="{groups.count(g)}">{g}</th>' for g in dict.fromkeys(groups)
    )
    names = "".join(
        f'<th scope="col" data-key="{escape(c.key)}">{escape(c.heading)}</th>' for c in shown
    )
    return (
        '<tr><th scope="col" rowspan="2" data-key="case">case</th>'
        f'<th scope="col" rowspan="2" data-key="status">status</th>{top}</tr><tr>{names}</tr>'
    )


def _row(case: CaseSummary, workload: Workload, shown: Sequence[Column]) -> str:
    status = badge(case).lstrip() or escape(case.status)
    tip = f' title="{escape(case.reason)}"' if case.reason else ""
    name = escape(case.case)
    mark = swatch(workload.marks[case.backend], hollow(case))
    cells = "".join(_cell(column, column.read(case)) for column in shown)
    return (
        f'<tr data-case="{name}" data-status="{escape(case.status)}">'
        f'<th scope="row" data-value="{name}">'
        f'<a href="#{workload.anchor}">{mark}{name}</a></th>'
        f'<td data-key="status" data-label="status" class="deciding"{tip}>{status}</td>{cells}</tr>'
    )


def _cell(column: Column, cell: Cell) -> str:
    label = escape(f"{column.group}: {column.heading}")  # shown on narrow screens
    value = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
    tip = f' title="{escape(cell.tip)}"' if cell.tip else ""
    word = "flagged" if cell.flagged else "absent" if cell.shown == quantities.ABSENT else ""
    class_ = f' class="{word}"' if word else ""
    named = f'data-key="{escape(column.key)}" data-label="{label}"'
    return f"<td {named}{value}{tip}{class_}>{escape(cell.shown)}</td>"
