"""Correctness, proof of the cache label and stability of every case: as data
(`validation_report.json`) and as a page (`validation.html`: one file, no network, no script).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from firstlight.present.document import document, masthead, table
from firstlight.present.quantities import ABSENT, percent, scientific
from firstlight.records import CaseSummary, JsonObject, Sample, to_json
from firstlight.snapshot.citation import abstract
from firstlight.snapshot.layout import VERSION
from firstlight.snapshot.opening import RawRun, timed
from firstlight.snapshot.plausibility import unproven_labels
from firstlight.snapshot.strict_json import Plain
from firstlight.snapshot.tables import quantile

#: The gates in order; the words are part of validation_report.json.
_GATES = {
    "protocol": "a protocol was recorded",
    "correct": "every process agreed with the reference within the tolerance",
    "proven": "every timed process proved the cache label",
    "complete": "every planned process gave a time",
}
_COLUMNS = (
    *("case", "verdict", "error", "tolerance", "of it"),
    *("label", "processes", "range of first results", "warm calls", "reference"),
)


def validation_report(runs: Sequence[RawRun]) -> Plain:
    """Every case with its gates, and why it failed one."""
    cases = [_case(raw, case) for raw in runs for case in raw.run.cases]
    return {
        "schema": "firstlight.snapshot.validation",
        "schema_version": VERSION,
        "cases_total": len(cases),
        "cases_passed": sum(case["passed"] for case in cases),
        "cases_skipped": sum(case["status"] == "skipped" for case in cases),
        "gates": _GATES,
        "cases": cases,
    }


def _case(raw: RawRun, case: CaseSummary) -> Plain:
    samples = raw.by_case[case.case]
    objections = unproven_labels(raw.planned[case.case], samples)
    times = timed(samples)
    checks = [s.correctness for s in samples if s.correctness is not None]
    gates = {
        "protocol": case.protocol is not None,
        "correct": bool(checks) and all(check.passed for check in checks),
        "proven": bool(times) and not objections,
        "complete": len({s.index for s in times}) >= case.processes_planned > 0,
    }
    return {
        "run": raw.folder,
        **{name: getattr(case, name) for name in ("case", "status", "reason")},
        "passed": case.status == "ok" and all(gates.values()),
        "gates": gates,
        "correctness": {**_worst(case), "processes": [*map(_checked, samples)]},
        "cache": {
            "policy": case.cache,
            "objections": objections,
            "processes": [to_json(s.cache) for s in samples if s.kind == "timed"],
        },
        "stability": _stability(case, times),
    }


def _worst(case: CaseSummary) -> Plain:
    found = case.correctness
    if found is None:
        names = ("passed", "max_relative_error", "tolerance", "reference", "delta_to_tolerance")
        return dict.fromkeys(names)
    error, tolerance = found.max_relative_error, found.tolerance
    share = error / tolerance if error is not None and tolerance else None
    return {**to_json(found), "delta_to_tolerance": share}


def _checked(sample: Sample) -> Plain:
    found = sample.correctness
    return {
        **{name: getattr(sample, name) for name in ("kind", "index", "status")},
        "passed": found.passed if found else None,
        "max_relative_error": found.max_relative_error if found else None,
    }


def _stability(case: CaseSummary, times: Sequence[Sample]) -> Plain:
    totals = [s.cold.total_seconds for s in times if s.cold is not None]
    middle = quantile(totals, 0.5) if totals else 0.0
    spans = {"cold_relative_range": (0.0, 1.0), "cold_relative_iqr": (0.25, 0.75)}
    names = ("processes_ok", "processes_planned", "warm_class", "warm_reason")
    found = {name: getattr(case, name) for name in names}
    for name, (low, high) in spans.items():
        span = quantile(totals, high) - quantile(totals, low) if totals else 0.0
        found[name] = span / middle if middle > 0 else None
    return found


def validation_html(report: Plain, manifest: Plain) -> bytes:
    """The page: the gates, and the result of every case."""
    title = str(manifest["publication"]["title"])
    passed, skipped = report["cases_passed"], report["cases_skipped"]
    asked = report["cases_total"] - skipped
    lead = (
        f"<p>{escape(title)}</p><p>{escape(abstract(manifest))}</p>"
        f'<p><span class="badge{" fine" if passed == asked else ""}">{passed} of {asked} cases '
        "valid: they passed every gate</span>"
        f"{f', {skipped} skipped' if skipped else ''}</p>"
    )
    gates = "".join(f"<dt>{name}</dt><dd>{about}</dd>" for name, about in _GATES.items())
    main = (
        "<main><section><h2>The gates</h2><p>A case passes if it passes them all. "
        "<b>error</b> is max|x − ref| / max|ref| over every output of every process, the worst "
        "of them; <b>of it</b> is the error as a share of the tolerance.</p>"
        f"<dl>{gates}</dl></section>"
        f"{''.join(_run(run, report['cases']) for run in manifest['runs'])}</main>"
    )
    return document(f"Validation: {title}", f"{masthead('Validation', lead)}{main}").encode()


def _run(run: Plain, cases: Sequence[Plain]) -> str:
    own = [case for case in cases if case["run"] == run["folder"]]
    notes = "".join(f"<li>{escape(warning)}</li>" for warning in run["warnings"])
    troubles = "".join(_trouble(case) for case in own if not case["passed"])
    return (
        f"<section><h2>{escape(run['folder'])}</h2><p>{escape(run['id'])}; "
        f'<a href="{run["folder"]}/report.html">its report</a></p>'
        f"{f'<ul>{notes}</ul>' if notes else ''}{table(_COLUMNS, map(_row, own))}"
        + (f'<ul class="troubles">{troubles}</ul>' if troubles else "")
        + "</section>"
    )


def _trouble(case: Plain) -> str:
    why = [text for text in (case["reason"], *case["cache"]["objections"][:3]) if text]
    reason = "; ".join(why) or "no reason was recorded"
    return f"<li><b>{escape(case['case'])}</b> {escape(reason)}</li>"


@dataclass(frozen=True)
class CaseText:
    """A case of the report as plain text."""

    verdict: str
    error: str
    tolerance: str
    label: str
    processes: str
    spread: str
    warm_class: str

    @classmethod
    def of(cls, case: JsonObject) -> CaseText:
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


def _row(case: Plain) -> str:
    words, correct = CaseText.of(case), case["correctness"]
    cells = (
        *(words.error, words.tolerance, _share(correct["delta_to_tolerance"]), words.label),
        *(words.processes, words.spread, words.warm_class, correct["reference"] or ABSENT),
    )
    fine = " fine" if case["passed"] else ""
    mark = f'<td><span class="badge{fine}">{escape(words.verdict)}</span></td>'
    shown = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(case["case"])}</th>{mark}{shown}</tr>'
