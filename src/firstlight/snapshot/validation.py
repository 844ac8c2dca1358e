"""`validation_report.json`: the correctness gate, the proof of the label, and how steady it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firstlight.records import CaseSummary, Sample, to_json
from firstlight.snapshot.distributions import quantile
from firstlight.snapshot.layout import VERSION
from firstlight.snapshot.plausibility.cache_labels import unproven_labels
from firstlight.snapshot.raw_runs import RawRun, timed

#: Gates in the order in which they are asked.
GATES = ("protocol", "correct", "proven", "complete")


def validation_report(runs: Sequence[RawRun]) -> dict[str, Any]:
    """Every case with its gates; what a case did not pass, it says why."""
    cases = [_case(raw, case) for raw in runs for case in raw.run.cases]
    return {
        "schema": "firstlight.snapshot.validation",
        "schema_version": VERSION,
        "cases_total": len(cases),
        "cases_passed": sum(case["passed"] for case in cases),
        "cases_skipped": sum(case["status"] == "skipped" for case in cases),
        "gates": {
            "protocol": "a protocol was recorded",
            "correct": "every process agreed with the reference within the tolerance",
            "proven": "every timed process proved the cache label",
            "complete": "every planned process gave a time",
        },
        "cases": cases,
    }


def _case(raw: RawRun, case: CaseSummary) -> dict[str, Any]:
    samples = list(raw.by_case[case.case])
    objections = unproven_labels(raw.planned[case.case], samples)
    times = timed(samples)
    gates = {
        "protocol": case.protocol is not None,
        "correct": _correct(samples),
        "proven": bool(times) and not objections,
        "complete": len({s.index for s in times}) >= case.processes_planned > 0,
    }
    return {
        "run": raw.folder,
        "case": case.case,
        "status": case.status,
        "reason": case.reason,
        "passed": case.status == "ok" and all(gates.values()),
        "gates": gates,
        "correctness": {**_worst(case), "processes": [_checked(s) for s in samples]},
        "cache": {
            "policy": case.cache,
            "objections": objections,
            "processes": [to_json(s.cache) for s in samples if s.kind == "timed"],
        },
        "stability": _stability(case, times),
    }


def _correct(samples: Sequence[Sample]) -> bool:
    found = [s.correctness for s in samples if s.correctness is not None]
    return bool(found) and all(c.passed for c in found)


def _worst(case: CaseSummary) -> dict[str, Any]:
    found = case.correctness
    if found is None:
        return {
            "passed": None, "max_relative_error": None, "tolerance": None, "reference": None,
            "delta_to_tolerance": None,
        }  # fmt: skip
    error, tolerance = found.max_relative_error, found.tolerance
    share = error / tolerance if error is not None and tolerance else None
    plain: dict[str, Any] = to_json(found)
    return {**plain, "delta_to_tolerance": share}


def _checked(sample: Sample) -> dict[str, Any]:
    found = sample.correctness
    return {
        "kind": sample.kind,
        "index": sample.index,
        "status": sample.status,
        "passed": found.passed if found else None,
        "max_relative_error": found.max_relative_error if found else None,
    }


def _stability(case: CaseSummary, times: Sequence[Sample]) -> dict[str, Any]:
    totals = [s.cold.total_seconds for s in times if s.cold is not None]
    middle = quantile(totals, 0.5) if totals else 0.0
    relative = middle > 0
    return {
        "processes_ok": case.processes_ok,
        "processes_planned": case.processes_planned,
        "cold_relative_range": (max(totals) - min(totals)) / middle if relative else None,
        "cold_relative_iqr": (quantile(totals, 0.75) - quantile(totals, 0.25)) / middle
        if relative
        else None,
        "warm_class": case.warm_class,
        "warm_reason": case.warm_reason,
    }
