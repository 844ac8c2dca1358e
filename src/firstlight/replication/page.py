"""`replication.html`: the report for a person; one file, no network, no script."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.compare.verdicts import change
from firstlight.present.document import document, masthead, table
from firstlight.present.quantities import ABSENT, count, scientific, seconds
from firstlight.replication.wording import case_reasons

_HEADLINE = ("cold_seconds", "warm_call_seconds")
_STYLE = "small cards"
_OWN = """
.verdict { font-weight: 650; white-space: nowrap; }
.v-agrees { color: var(--good); } .v-differs { color: var(--alarm); }
.v-undecided { color: var(--accent); } .v-not { color: var(--muted); }
.small .why { white-space: normal; text-align: left !important; color: var(--muted); }
.small .why { padding: 0 0 .4rem; }
.small tr:has(> .why) { border-top: 0; }
.told { color: var(--muted); }
tr.more { border-top: 0; }
"""


def replication_html(report: Mapping[str, Any]) -> str:
    """The page of a report in its plain form."""
    title = str(report["snapshot"]["title"])
    lead = (
        f"<p>of {html.escape(title)}</p><p><code>{html.escape(report['snapshot']['id'])}</code></p>"
        f"<p>{html.escape(report['created_at'][:16].replace('T', ' '))} UTC, {_totals(report)}</p>"
    )
    body = (
        f"{masthead('Replication', lead)}<main>{_cases(report)}{_ratios(report)}"
        f"{_left_out(report)}{_environments(report)}{_method(report)}</main>"
    )
    return document(f"Replication: {title}", body, style=_OWN)


def _totals(report: Mapping[str, Any]) -> str:
    parts = [f"{number} {verdict}" for verdict, number in report["verdicts"].items() if number]
    if report["left_out"]:
        parts.append(f"{len(report['left_out'])} not measured")
    return html.escape(", ".join(parts))


def _mark(verdict: str) -> str:
    class_ = verdict.split(" ")[0]
    return f'<span class="verdict v-{class_}">{html.escape(verdict)}</span>'


def _row(head: Sequence[str], name: str | None, cells: Sequence[str], rows: int = 1) -> str:
    """A row of markup; without a name it belongs to the case above, which spans so many rows."""
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


def _cases(report: Mapping[str, Any]) -> str:
    told = zip(report["cases"], case_reasons(report), strict=True)
    rows = [row for case, reasons in told for row in _case_rows(case, reasons)]
    return f"<section><h2>Every case</h2>{table(_CASES, rows, _STYLE)}</section>"


def _case_rows(case: Mapping[str, Any], reasons: Sequence[str]) -> list[str]:
    shown = [d for d in case["deltas"] if d["judged"] or d["quantity"] in _HEADLINE]
    errors = [_error(case[f"correctness_{side}"]) for side in ("published", "here")]
    deltas = [_delta(delta) for delta in shown] or [[""] * 4]
    ends = [(*errors, _mark(case["verdict"])), *(("", "", ""),) * (len(deltas) - 1)]
    rows = [
        _row(
            _CASES,
            None if number else html.escape(case["case"]),
            (*cells, *end),
            len(deltas),
        )
        for number, (cells, end) in enumerate(zip(deltas, ends, strict=True))
    ]
    # Words under the numbers: a column of them would push the verdict out of sight.
    return rows + [
        f'<tr><td colspan="8" class="why">{html.escape(reason)}</td></tr>' for reason in reasons
    ]


def _delta(delta: Mapping[str, Any]) -> list[str]:
    return [
        html.escape(delta["quantity"].removesuffix("_seconds").replace("_", " ")),
        html.escape(seconds(delta["published"]["median"])),
        html.escape(seconds(delta["here"]["median"])),
        html.escape(_span(delta["effect"])),
    ]


def _span(effect: Mapping[str, Any]) -> str:
    return f"{_change(effect['ratio'])} [{_change(effect['low'])}, {_change(effect['high'])}]"


def _change(ratio: float) -> str:
    """In per cent, or as a factor where those would run to thousands."""
    return change(ratio) if 0.1 < ratio < 10 else f"×{_number(ratio)}"


def _error(correctness: Mapping[str, Any] | None) -> str:
    if correctness is None:
        return ABSENT
    mark = "" if correctness["passed"] else " wrong"
    return html.escape(scientific(correctness["max_relative_error"]) + mark)


def _ratios(report: Mapping[str, Any]) -> str:
    if not report["ratios"]:
        return ""
    head = ("case", "quantity", "published", "here", "change", "order", "verdict")
    rows = [
        _row(
            head,
            f"{html.escape(r['case'])}<br>over {html.escape(r['against'])}",
            [
                html.escape(r["quantity"].removesuffix("_seconds").replace("_", " ")),
                _times(r["published"]),
                _times(r["here"]),
                html.escape(_span(r["effect"])),
                html.escape(r["order"]),
                _mark(r["verdict"]),
            ],
        )
        for r in report["ratios"]
    ]
    return (
        "<section><h2>Ratios between cases of the same run</h2><p>How many times as long a case "
        "takes as another one of its workload, paired by round. On another kind of machine times "
        "are not comparable, and these are: they say whether the same case is the faster one "
        f"(order), and by as much (verdict).</p>{table(head, rows, _STYLE)}</section>"
    )


def _times(effect: Mapping[str, Any]) -> str:
    ends = f"[{_number(effect['low'])}, {_number(effect['high'])}]"
    return html.escape(f"{_number(effect['ratio'])}× {ends}")


def _number(value: float) -> str:
    return count(value) if value >= 1000 else f"{value:.3g}"


def _left_out(report: Mapping[str, Any]) -> str:
    items = "".join(
        f"<li><b>{html.escape(o['case'])}</b> {html.escape(o['reason'])}</li>"
        for o in report["left_out"]
    )
    return f"<section><h2>Not measured here</h2><ul>{items}</ul></section>" if items else ""


def _environments(report: Mapping[str, Any]) -> str:
    parts = "".join(_environment(run) for run in report["runs"])
    return f"<section><h2>What was not the same</h2>{parts}</section>"


def _environment(run: Mapping[str, Any]) -> str:
    groups = [(name, found) for name, found in run["environment"].items() if found]
    groups += [("settings that could not be kept", run["notes"])] if run["notes"] else []
    lists = "".join(
        f"<details{' open' if len(found) <= 12 else ''}><summary>{html.escape(name)} "
        f"({len(found)})</summary><ul>"
        + "".join(f"<li>{html.escape(text)}</li>" for text in found)
        + "</ul></details>"
        for name, found in groups
    )
    return (
        f"<h3>{html.escape(run['published_folder'])}</h3><p>{html.escape(run['machine_published'])}"
        f" (published); {html.escape(run['machine_here'])} (here)</p>"
        + (lists or "<p>Nothing that was recorded.</p>")
        + _state(run["state_published"], "published")
        + _state(run["state_here"], "here")
    )


def _state(state: Mapping[str, Any], where: str) -> str:
    """What else the machine did: load and what was warned of."""
    parts = [
        f"load {' '.join(f'{value:.2f}' for value in state[name])} {when}"
        for name, when in (("load", "before"), ("load_after", "after"))
        if state[name]
    ]
    if state["cpu_busy_ratio"] is not None:
        parts.append(f"{state['cpu_busy_ratio']:.0%} of the CPU used by others when it began")
    told = "".join(f"<li>{html.escape(text)}</li>" for text in state["warnings"])
    return (
        f"<p>Around the run {where}: {html.escape('; '.join(parts) or 'nothing recorded')}.</p>"
        + (f"<ul>{told}</ul>" if told else "")
    )


def _method(report: Mapping[str, Any]) -> str:
    drift, alpha = f"{report['drift']:.0%}", f"{report['alpha']:.0%}"
    return (
        '<section><h2>Method</h2><div class="prose">'
        f"<p>Two jobs on one machine come out apart by up to {drift} for no reason. A quantity "
        "<b>agrees</b> if the whole interval of its change lies within that, <b>differs</b> if it "
        f"lies outside and is significant at {alpha} after Holm’s correction, and is "
        "<b>undecided</b> in between. The change is Hodges and Lehmann’s estimate with its exact "
        "interval of 95 % or more. What decides: the first result, its compile phase where that "
        "is a tenth of it or more, and the warm call. Where other programs took half of the CPU or "
        "more when one of both runs began, a case is undecided.</p>"
        "<p>All values are in <code>replication.json</code>, the processes in <code>runs/</code>."
        "</p></div></section>"
    )
