"""A snapshot's numbers as tables (CSV) and distributions (JSON)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from firstlight.records import PHASES, CaseSummary, Sample
from firstlight.report.exporters import harmless
from firstlight.snapshot.layout import VERSION
from firstlight.snapshot.opening import RawRun, timed
from firstlight.snapshot.strict_json import Plain

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_ENDS = ("median", "low", "high")


def cases_csv(runs: Sequence[RawRun]) -> bytes:
    """One row per case: medians with their intervals, phases, memory, status."""
    out = io.StringIO()
    rows = [_row(raw.folder, case) for raw in runs for case in raw.run.cases]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(harmless(row.values()) for row in rows)
    return out.getvalue().encode()


def _row(folder: str, case: CaseSummary) -> dict[str, object]:
    cold, correct = case.cold_seconds, case.correctness
    rate, even = case.throughput_calls_per_second, case.break_even_calls
    names = ("case", "workload", "size", "backend", "cache", "status")
    return {
        "run": folder,
        **{name: getattr(case, name) for name in names},
        "n": cold.n if cold else None,
        "confidence": cold.confidence if cold else None,
        **{f"cold_{end}_seconds": getattr(cold, end, None) for end in _ENDS},
        **{f"{phase}_seconds": case.phases_seconds.get(phase) for phase in PHASES},
        "unattributed_seconds": case.unattributed_seconds,
        **{f"warm_call_{e}_seconds": getattr(case.warm_call_seconds, e, None) for e in _ENDS},
        "warm_class": case.warm_class,
        "throughput_calls_per_second": rate.median if rate else None,
        "peak_host_bytes": case.peak_host_bytes,
        "peak_device_bytes": case.peak_device_bytes,
        "max_relative_error": correct.max_relative_error if correct else None,
        "tolerance": correct.tolerance if correct else None,
        "break_even_calls": even.calls if even else None,
    }


def distributions(runs: Sequence[RawRun]) -> Plain:
    """`distributions.json`: values in run order and their quantiles, where a case has a number."""
    return {
        "schema": "firstlight.snapshot.distributions",
        "schema_version": VERSION,
        "quantile_definition": "linear between order statistics (Hyndman and Fan, type 7)",
        "runs": [
            {
                "folder": raw.folder,
                "cases": [
                    {"case": case.case, **_case(timed(raw.by_case[case.case]))}
                    for case in raw.run.cases
                    if case.cold_seconds is not None
                ],
            }
            for raw in runs
        ],
    }


def _case(samples: Sequence[Sample]) -> Plain:
    cold = [s.cold for s in samples if s.cold is not None]
    warm = [s.warm for s in samples if s.warm is not None]
    return {
        "processes": [s.index for s in samples],
        "cold_seconds": _spread([c.total_seconds for c in cold]),
        "phases_seconds": {
            phase: _spread([c.phases_seconds.get(phase) for c in cold]) for phase in PHASES
        },
        "unattributed_seconds": _spread([c.unattributed_seconds for c in cold]),
        # The process is the unit: quantiles of calls within each, then the medians of processes.
        "warm_call_seconds": [
            {"calls": len(w.call_seconds), "quantiles": _quantiles(w.call_seconds)} for w in warm
        ],
        "warm_call_median_seconds": _spread([quantile(w.call_seconds, 0.5) for w in warm]),
        "throughput_calls_per_second": _spread(
            [w.batch_calls / quantile(w.batch_seconds, 0.5) for w in warm if any(w.batch_seconds)]
        ),
    }


def _spread(values: Sequence[float | None]) -> Plain | None:
    """Values in order with their quantiles; None for a phase that does not exist."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return {"n": len(known), "values": list(values), "quantiles": _quantiles(known)}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"{q:g}": quantile(ordered, q) for q in QUANTILES} if ordered else {}


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
