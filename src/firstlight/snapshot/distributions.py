"""`distributions.json`: cold and warm distributions of every case, from the samples alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from firstlight.records import PHASES, Sample
from firstlight.snapshot.layout import VERSION
from firstlight.snapshot.raw_runs import RawRun, has_number, timed

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def distributions(runs: Sequence[RawRun]) -> dict[str, Any]:
    """Values in run order and their quantiles, for every case that has a number."""
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
                    if has_number(case)
                ],
            }
            for raw in runs
        ],
    }


def _case(samples: Sequence[Sample]) -> dict[str, Any]:
    cold = [s.cold for s in samples if s.cold is not None]
    warm = [s.warm for s in samples if s.warm is not None]
    return {
        "processes": [s.index for s in samples],
        "cold_seconds": spread([c.total_seconds for c in cold]),
        "phases_seconds": {
            phase: spread([c.phases_seconds.get(phase) for c in cold]) for phase in PHASES
        },
        "unattributed_seconds": spread([c.unattributed_seconds for c in cold]),
        # The process is the unit: quantiles of the calls within each, then the medians of all.
        "warm_call_seconds": [
            {"calls": len(w.call_seconds), "quantiles": quantiles(w.call_seconds)} for w in warm
        ],
        "warm_call_median_seconds": spread([quantile(w.call_seconds, 0.5) for w in warm]),
        "throughput_calls_per_second": spread(
            [w.batch_calls / quantile(w.batch_seconds, 0.5) for w in warm if any(w.batch_seconds)]
        ),
    }


def spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Values in order with their quantiles; None where the phase does not exist."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return {"n": len(known), "values": list(values), "quantiles": quantiles(known)}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """{'0.5': median, …}."""
    ordered = sorted(values)
    return {f"{q:g}": _at(ordered, q) for q in QUANTILES} if ordered else {}


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, linear between order statistics."""
    return _at(sorted(values), q)


def _at(ordered: Sequence[float], q: float) -> float:
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
