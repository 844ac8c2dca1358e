"""The report as a page, `replication.html` (one file, no network, no script), and the reasons for
its verdicts in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from firstlight.compare.conditions import busy_share, disturbance_warning
from firstlight.compare.differences import in_words
from firstlight.compare.runs import DRIFT
from firstlight.compare.verdicts import change, too_few
from firstlight.present.document import document, masthead, table
from firstlight.present.quantities import ABSENT, count, scientific, seconds
from firstlight.records import Correctness, JsonObject
from firstlight.replication.report import (
    ALPHA,
    CaseReplication,
    Delta,
    RatioReplication,
    Reason,
    Replication,
    RunReplication,
)
from firstlight.statistics.effects import Effect

_HEADLINE = ("cold_seconds", "warm_call_seconds")
_STYLE = "small cards"
_CSS = """
.verdict { font-weight: 650; white-space: nowrap; }
.v-agrees { color: var(--good); } .v-differs { color: var(--alarm); }
.v-undecided { color: var(--accent); } .v-not { color: var(--muted); }
.small .why { white-space: normal; text-align: left !important; color: var(--muted); }
.small .why { padding: 0 0 .4rem; }
.small tr:has(> .why) { border-top: 0; }
.told { color: var(--muted); }
tr.more { border-top: 0; }
"""


def case_reasons(report: Replication) -> list[list[str]]:
    """For every case of a report, the reasons for its verdict."""
    runs = {run.folder: run for run in report.runs}
    comparisons = sum(delta.judged for case in report.cases for delta in case.deltas)
    return [[*_reasons(case, runs.get(case.run), comparisons)] for case in report.cases]


def _reasons(case: CaseReplication, run: RunReplication | None, comparisons: int) -> Iterator[str]:
    if case.status_here == "failed":
        yield f"failed here: {case.failure_here}"
        return
    if case.verdict == "not comparable":
        for difference in case.differences:
            yield in_words(difference, "published", "here")
        if case.status_here != "ok":
            yield f"{case.status_here} here: {case.failure_here}"
        return
    states = (run.state_published, run.state_here) if run is not None else ()
    for state, where in zip(states, ("that was published", "here"), strict=False):
        share = busy_share(state)
        if share is not None:
            yield disturbance_warning(share, where)
    if not any(delta.judged for delta in case.deltas):
        yield "no quantity of it can be judged"
        return
    for delta in case.deltas:
        if delta.reason is not None:
            yield f"{delta.quantity}: {_why(delta, delta.reason, comparisons)}"


def _why(delta: Delta, reason: Reason, comparisons: int) -> str:
    effect = delta.effect
    span = f"{change(effect.low)} to {change(effect.high)}"
    beyond = f"{change(effect.ratio)}, but"
    return {
        Reason.BEYOND_DRIFT: f"{change(effect.ratio)} ({span}): beyond the {DRIFT:.0%} of drift",
        Reason.PARTLY_BEYOND_DRIFT: f"{span}: partly beyond the {DRIFT:.0%} that two jobs may "
        "drift apart",
        Reason.NOT_SIGNIFICANT: f"{beyond} p is {delta.p_adjusted:.2g} after Holm",
        Reason.NEVER_SIGNIFICANT: f"{beyond} "
        + too_few(effect, "processes per side", comparisons, ALPHA),
        Reason.NO_INTERVAL: f"{effect.n} processes are too few for an interval of 95 %",
        Reason.TWO_SPEEDS: "not judged: the published processes ran at different speeds",
    }[reason]


def replication_html(report: Replication) -> str:
    title = str(report.snapshot["title"])
    when = report.created_at[:16].replace("T", " ")
    lead = (
        f"<p>of {escape(title)}</p><p><code>{escape(report.snapshot['id'])}</code></p>"
        f"<p>{escape(when)} UTC, {escape(report.totals())}</p>"
    )
    left = _listed([f"<b>{escape(o.case)}</b> {escape(o.reason)}" for o in report.left_out])
    body = (
        f"{masthead('Replication', lead)}<main>{_cases(report)}{_ratios(report.ratios)}"
        f"{f'<section><h2>Not measured here</h2>{left}</section>' if left else ''}"
        "<section><h2>What was not the same</h2>"
        f"{''.join(map(_environment, report.runs))}</section>{_method(report)}</main>"
    )
    return document(f"Replication: {title}", body, style=_CSS)


def _mark(verdict: str) -> str:
    return f'<span class="verdict v-{verdict.split(" ")[0]}">{escape(verdict)}</span>'


def _row(head: Sequence[str], name: str | None, cells: Sequence[str], rows: int = 1) -> str:
    """A row of markup; without a name it belongs to the case above, which spans `rows` rows."""
    first = f'<th scope="rowgroup" rowspan="{rows}">{name}</th>' if name is not None else ""
    found = []
    for label, cell in zip(head[1:], cells, strict=True):
        class_ = "absent" if not cell else "deciding" if label == "verdict" else ""
        found.append(f'<td data-label="{label}" class="{class_}">{cell}</td>')
    return f"<tr{' class=more' if name is None else ''}>{first}{''.join(found)}</tr>"


_CASES = (
    *("case", "quantity", "published", "here", "change", "error published", "error here"),
    "verdict",
)


def _cases(report: Replication) -> str:
    reasoned = zip(report.cases, case_reasons(report), strict=True)
    rows = [row for case, reasons in reasoned for row in _case_rows(case, reasons)]
    return f"<section><h2>Every case</h2>{table(_CASES, rows, _STYLE)}</section>"


def _case_rows(case: CaseReplication, reasons: Sequence[str]) -> list[str]:
    deltas = [_delta(d) for d in case.deltas if d.judged or d.quantity in _HEADLINE] or [[""] * 4]
    first = [_error(case.correctness_published), _error(case.correctness_here), _mark(case.verdict)]
    ends = [first, *[["", "", ""]] * (len(deltas) - 1)]
    rows = [
        _row(_CASES, None if number else escape(case.case), [*cells, *end], len(deltas))
        for number, (cells, end) in enumerate(zip(deltas, ends, strict=True))
    ]
    # Reasons go below the numbers: a column of them would push the verdict out of sight.
    return rows + [f'<tr><td colspan="8" class="why">{escape(r)}</td></tr>' for r in reasons]


def _delta(delta: Delta) -> list[str]:
    return [
        _quantity(delta.quantity),
        escape(seconds(delta.published.median)),
        escape(seconds(delta.here.median)),
        _span(delta.effect),
    ]


def _quantity(name: str) -> str:
    return escape(name.removesuffix("_seconds").replace("_", " "))


def _span(effect: Effect) -> str:
    return escape(f"{_change(effect.ratio)} [{_change(effect.low)}, {_change(effect.high)}]")


def _change(ratio: float) -> str:
    """In per cent, or as a factor beyond tenfold changes."""
    return change(ratio) if 0.1 < ratio < 10 else f"×{_number(ratio)}"


def _error(correctness: Correctness | None) -> str:
    if correctness is None:
        return ABSENT
    mark = "" if correctness.passed else " wrong"
    return escape(scientific(correctness.max_relative_error) + mark)


def _ratios(ratios: Sequence[RatioReplication]) -> str:
    if not ratios:
        return ""
    head = ("case", "quantity", "published", "here", "change", "order", "verdict")
    rows = [
        _row(
            head,
            f"{escape(r.case)}<br>over {escape(r.against)}",
            [_quantity(r.quantity), _times(r.published), _times(r.here), _span(r.effect),
             escape(r.order), _mark(r.verdict)],
        )
        for r in ratios
    ]  # fmt: skip
    return (
        "<section><h2>Ratios between cases of the same run</h2><p>How many times as long a case "
        "takes as another one of its workload, paired by round. On another kind of machine times "
        "are not comparable, and these are: they say whether the same case is the faster one "
        f"(order), and by as much (verdict).</p>{table(head, rows, _STYLE)}</section>"
    )


def _times(effect: Effect) -> str:
    ends = f"[{_number(effect.low)}, {_number(effect.high)}]"
    return escape(f"{_number(effect.ratio)}× {ends}")


def _number(value: float) -> str:
    return count(value) if value >= 1000 else f"{value:.3g}"


def _listed(items: Sequence[str]) -> str:
    """A list of markup; '' if there are no items."""
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


def _environment(run: RunReplication) -> str:
    groups = {**run.environment, "settings that could not be kept": run.notes}
    lists = "".join(
        f"<details{' open' if len(found) <= 12 else ''}><summary>{escape(name)} "
        f"({len(found)})</summary>{_listed([*map(escape, found)])}</details>"
        for name, found in groups.items()
        if found
    )
    return (
        f"<h3>{escape(run.published_folder)}</h3><p>{escape(run.machine_published)}"
        f" (published); {escape(run.machine_here)} (here)</p>"
        + (lists or "<p>Nothing that was recorded.</p>")
        + _state(run.state_published, "published")
        + _state(run.state_here, "here")
    )


def _state(state: JsonObject, where: str) -> str:
    """The load on the machine, and warnings."""
    parts = [
        f"load {' '.join(f'{value:.2f}' for value in state[name])} {when}"
        for name, when in (("load", "before"), ("load_after", "after"))
        if state[name]
    ]
    if state["cpu_busy_ratio"] is not None:
        parts.append(f"{state['cpu_busy_ratio']:.0%} of the CPU used by others when it began")
    recorded = escape("; ".join(parts) or "nothing recorded")
    return f"<p>Around the run {where}: {recorded}.</p>{_listed([*map(escape, state['warnings'])])}"


def _method(report: Replication) -> str:
    return (
        '<section><h2>Method</h2><div class="prose">'
        f"<p>Two jobs on one machine come out apart by up to {report.drift:.0%} for no reason. A "
        "quantity <b>agrees</b> if the whole interval of its change lies within that, "
        f"<b>differs</b> if it lies outside and is significant at {report.alpha:.0%} after Holm’s "
        "correction, and is <b>undecided</b> in between. The change is Hodges and Lehmann’s "
        "estimate with its exact interval of 95 % or more. What decides: the first result, its "
        "compile phase where that is a tenth of it or more, and the warm call. Where other "
        "programs took half of the CPU or more when one of both runs began, a case is undecided."
        "</p><p>All values are in <code>replication.json</code>, the processes in "
        "<code>runs/</code>.</p></div></section>"
    )
