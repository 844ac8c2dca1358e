"""`validation.html`: the validation report for a person; one file, no network, no script."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.present.document import document, masthead, table
from firstlight.present.quantities import ABSENT, percent, scientific
from firstlight.snapshot.citation import abstract
from firstlight.snapshot.validation import GATES

_COLUMNS = (
    *("case", "verdict", "error", "tolerance", "of it"),
    *("label", "processes", "range of first results", "warm calls", "reference"),
)


def validation_html(report: Mapping[str, Any], manifest: Mapping[str, Any]) -> bytes:
    """The page: what was asked of every case, and what it answered."""
    title = str(manifest["publication"]["title"])
    lead = (
        f"<p>{html.escape(title)}</p><p>{html.escape(abstract(manifest))}</p>"
        f"<p>{_verdict(report)}</p>"
    )
    main = f"<main>{_gates(report)}{_runs(report, manifest)}</main>"
    return document(f"Validation: {title}", f"{masthead('Validation', lead)}{main}").encode()


def _verdict(report: Mapping[str, Any]) -> str:
    passed, total = report["cases_passed"], report["cases_total"]
    asked = total - report["cases_skipped"]
    fine = " fine" if passed == asked else ""
    text = f"{passed} of {asked} cases valid: they passed every gate"
    skipped = f", {report['cases_skipped']} skipped" if report["cases_skipped"] else ""
    return f'<span class="badge{fine}">{text}</span>{skipped}'


def _gates(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(report['gates'][name])}</dd>"
        for name in GATES
    )
    return (
        "<section><h2>The gates</h2><p>A case passes if it passes them all. "
        "<b>error</b> is max|x − ref| / max|ref| over every output of every process, the worst "
        "of them; <b>of it</b> is the error as a share of the tolerance.</p>"
        f"<dl>{rows}</dl></section>"
    )


def _runs(report: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    parts = []
    for run in manifest["runs"]:
        own = [case for case in report["cases"] if case["run"] == run["folder"]]
        notes = "".join(f"<li>{html.escape(w)}</li>" for w in run["warnings"])
        listed = f"<ul>{notes}</ul>" if notes else ""
        parts.append(
            f"<section><h2>{html.escape(run['folder'])}</h2><p>{html.escape(run['id'])}; "
            f'<a href="{run["folder"]}/report.html">its report</a></p>{listed}'
            f"{table(_COLUMNS, map(_row, own))}{_troubles(own)}</section>"
        )
    return "".join(parts)


@dataclass(frozen=True)
class CaseWords:
    """What a reader is told of a case of the report; plain text."""

    verdict: str
    error: str
    tolerance: str
    label: str
    processes: str
    spread: str
    warm_class: str

    @classmethod
    def of(cls, case: Mapping[str, Any]) -> CaseWords:
        correct, steady, cache = case["correctness"], case["stability"], case["cache"]
        failed = [name for name, good in case["gates"].items() if not good]
        status = case["status"] if case["status"] != "ok" else f"not {', '.join(failed)}"
        proven = sum(bool(p and p["proven"]) for p in cache["processes"])
        return cls(
            verdict="valid" if case["passed"] else status,
            error=scientific(correct["max_relative_error"]),
            tolerance=scientific(correct["tolerance"]),
            label=f"{cache['policy']}: proven {proven} of {len(cache['processes'])}",
            processes=f"{steady['processes_ok']} of {steady['processes_planned']}",
            spread=_share(steady["cold_relative_range"]),
            warm_class=steady["warm_class"] or ABSENT,
        )


def _share(value: float | None) -> str:
    return ABSENT if value is None else percent(value)


def _row(case: Mapping[str, Any]) -> str:
    words, correct = CaseWords.of(case), case["correctness"]
    cells = (
        *(words.error, words.tolerance, _share(correct["delta_to_tolerance"]), words.label),
        *(words.processes, words.spread, words.warm_class, correct["reference"] or ABSENT),
    )
    fine = " fine" if case["passed"] else ""
    mark = f'<td><span class="badge{fine}">{html.escape(words.verdict)}</span></td>'
    shown = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{html.escape(case["case"])}</th>{mark}{shown}</tr>'


def _troubles(cases: Sequence[Mapping[str, Any]]) -> str:
    items = "".join(
        f"<li><b>{html.escape(case['case'])}</b> "
        f"{html.escape('; '.join(_why(case)) or 'no reason was recorded')}</li>"
        for case in cases
        if not case["passed"]
    )
    return f'<ul class="troubles">{items}</ul>' if items else ""


def _why(case: Mapping[str, Any]) -> list[str]:
    return [text for text in (case["reason"], *case["cache"]["objections"][:3]) if text]
