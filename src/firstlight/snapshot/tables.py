"""The tables of a snapshot, for a spreadsheet or a data frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from firstlight.records import PHASES, CaseSummary, Estimate
from firstlight.report.exporters import csv_text, harmless
from firstlight.snapshot.raw_runs import RawRun

_ENDS = ("median", "low", "high")


def cases_csv(runs: Sequence[RawRun]) -> bytes:
    """One row per case: medians with their intervals, phases, memory, status."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = ["run", "case", "workload", "size", "backend", "cache", "status", "n", "confidence"]
    names += [f"cold_{end}_seconds" for end in _ENDS]
    names += [f"{phase}_seconds" for phase in PHASES] + ["unattributed_seconds"]
    names += [f"warm_call_{end}_seconds" for end in _ENDS] + ["warm_class"]
    names += ["throughput_calls_per_second", "peak_host_bytes", "peak_device_bytes"]
    names += ["max_relative_error", "tolerance", "break_even_calls"]
    writer.writerow(names)
    for raw in runs:
        for case in raw.run.cases:
            writer.writerow(harmless(_row(raw.folder, case)))
    return out.getvalue().encode()


def processes_csv(raw: RawRun) -> bytes:
    """One row a timed process, with its phases."""
    return csv_text(raw.run, raw.samples).encode()


def _row(folder: str, case: CaseSummary) -> list[Any]:
    cold, warm, correct = case.cold_seconds, case.warm_call_seconds, case.correctness
    rate, even = case.throughput_calls_per_second, case.break_even_calls
    return [
        *(folder, case.case, case.workload, case.size, case.backend, case.cache, case.status),
        *((cold.n, cold.confidence) if cold else (None, None)),
        *_estimate(cold),
        *(case.phases_seconds.get(phase) for phase in PHASES),
        case.unattributed_seconds,
        *_estimate(warm),
        case.warm_class,
        rate.median if rate else None,
        case.peak_host_bytes,
        case.peak_device_bytes,
        *((correct.max_relative_error, correct.tolerance) if correct else (None, None)),
        even.calls if even else None,
    ]


def _estimate(value: Estimate | None) -> tuple[float | None, ...]:
    return (value.median, value.low, value.high) if value else (None, None, None)
