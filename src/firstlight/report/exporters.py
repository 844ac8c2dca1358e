"""Exports a run to the formats of other tools: only cases with status `ok`, except to CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence

from firstlight.records import PHASES, CaseSummary, JsonObject, Run, Sample

#: First characters by which a spreadsheet recognises a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def _quotable(run: Run) -> list[CaseSummary]:
    return [case for case in run.cases if case.status == "ok" and case.protocol is not None]


def harmless(row: Iterable[object]) -> list[object]:
    """The cells of a row, with an apostrophe before text that a spreadsheet takes for a formula."""
    # The csv writer does not quote a carriage return, where some readers begin a new row.
    return [
        ("'" if cell.startswith(_FORMULA) else "") + cell.replace("\r", "\\r")
        if isinstance(cell, str)
        else cell
        for cell in row
    ]


def csv_text(run: Run, samples: Sequence[Sample]) -> str:
    """One row per timed process, of any status, with its phases."""
    by_id = {case.case: case for case in run.cases}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ("case", "workload", "size", "backend", "cache", "process", "order", "status")
    phases = [f"{phase}_seconds" for phase in PHASES]
    tail = ("unattributed_seconds", "total_seconds", "warm_call_median_seconds", "peak_host_bytes")
    writer.writerow((*names, *phases, *tail))
    for sample in samples:
        case = by_id.get(sample.case)
        if sample.kind != "timed" or case is None or case.protocol is None:
            continue
        head = (case.case, case.workload, case.size, case.backend, case.cache)
        rest = (sample.index, sample.order, sample.status, *_values(sample))
        writer.writerow(harmless((*head, *rest)))
    return out.getvalue()


def _values(sample: Sample) -> list[object]:
    if sample.cold is None:
        return [None] * (len(PHASES) + 4)
    calls = sorted(sample.warm.call_seconds) if sample.warm else []
    peaks = sample.memory.peak_host_bytes if sample.memory else {}
    return [
        *(sample.cold.phases_seconds.get(phase) for phase in PHASES),
        sample.cold.unattributed_seconds,
        sample.cold.total_seconds,
        calls[len(calls) // 2] if calls else None,
        peaks.get("first_execute"),
    ]


def pyperf_json(run: Run, samples: Sequence[Sample]) -> str:
    """A pyperf suite: cold starts as single-value runs, warm calls as one run per process."""
    benchmarks = []
    for case in _quotable(run):
        timed = [s for s in samples if s.case == case.case and s.kind == "timed" and s.cold]
        cold = [[s.cold.total_seconds] for s in timed if s.cold]
        warm = [list(s.warm.call_seconds) for s in timed if s.warm]
        for regime, runs in (("cold", cold), ("warm", warm)):
            if runs:
                benchmarks.append(_pyperf_benchmark(run, case, regime, runs))
    document = {"version": "1.0", "metadata": {"unit": "second"}, "benchmarks": benchmarks}
    return json.dumps(document, indent=1) + "\n"


def _pyperf_benchmark(
    run: Run, case: CaseSummary, regime: str, runs: Sequence[Sequence[float]]
) -> JsonObject:
    metadata = {
        "name": f"{case.case} ({regime})",
        "firstlight_version": str(run.harness.get("version")),
        "firstlight_cache_policy": case.cache,
        "python_version": str(run.host.get("python", {}).get("version")),
        "cpu_model_name": str(run.host.get("cpu", {}).get("model")),
    }
    return {"metadata": metadata, "runs": [{"values": list(values)} for values in runs]}


def github_action_benchmark_json(run: Run, samples: Sequence[Sample]) -> str:
    """`customSmallerIsBetter` of github-action-benchmark: medians with their intervals."""
    entries = []
    for case in _quotable(run):
        for regime, estimate in (("cold", case.cold_seconds), ("warm", case.warm_call_seconds)):
            if estimate is None:
                continue
            span = f"[{estimate.low:.6g}, {estimate.high:.6g}] at {estimate.confidence:.1%}"
            entry = {
                "name": f"{case.case} ({regime})",
                "unit": "seconds",
                "value": estimate.median,
                "range": f"± {(estimate.high - estimate.low) / 2:.3g}",
                "extra": f"n={estimate.n}, {span}, cache {case.cache}",
            }
            entries.append(entry)
    return json.dumps(entries, indent=1) + "\n"
