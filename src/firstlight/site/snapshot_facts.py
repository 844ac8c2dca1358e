"""What the site keeps of a snapshot: a row of the list, and points of trends with conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.compare.environments import versions
from firstlight.records import CaseSummary, Estimate, Run, Sample, noisy_share, to_json
from firstlight.site import series_conditions
from firstlight.snapshot.opening import Snapshot
from firstlight.statistics.intervals import median_estimate

#: What a trend is drawn of. Few ask how an import went over time.
TRENDS = ("cold_seconds", "compile", "warm_call_seconds")
#: Seconds that can be drawn: below a picosecond and above thirty years nobody measured anything.
_PLAUSIBLE = (1e-12, 1e9)
_TITLE = 300  # characters in a list


def facts_of(snapshot: Snapshot, samples: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """Plain values for `data.json`; `samples[i]` are those of `snapshot.runs[i]`."""
    manifest, report = snapshot.manifest, snapshot.validation
    runs = [
        _run(run, own, about)
        for run, own, about in zip(snapshot.runs, samples, manifest["runs"], strict=True)
    ]
    return {
        "schema": "firstlight.site.snapshot",
        "schema_version": 1,
        "id": snapshot.id,
        "title": str(manifest["publication"]["title"])[:_TITLE],
        "measured": str(manifest["measured_to"]),
        "passed": report["cases_passed"],
        "asked": report["cases_total"] - report["cases_skipped"],
        "runs": runs,
    }


def _run(run: Run, samples: Sequence[Sample], about: Mapping[str, Any]) -> dict[str, Any]:
    hashes = {case["case"]: case["dataset"]["sha256"] for case in about["cases"]}
    compiling: dict[str, list[float]] = {}
    for sample in samples:
        seconds = sample.cold.phases_seconds.get("compile") if sample.cold else None
        if sample.kind == "timed" and seconds:
            compiling.setdefault(sample.case, []).append(seconds)
    shared = series_conditions.of_run(run)
    return {
        "id": run.id,
        "created_at": run.created_at,
        **shared,
        "noisy": noisy_share(run.host),
        "versions": versions(run.host, run.harness),
        "order": [case.case for case in run.cases],  # JSON objects have none
        "cases": {
            case.case: _case(case, shared, compiling.get(case.case, []), hashes.get(case.case))
            for case in run.cases
        },
    }


def _case(
    case: CaseSummary, shared: Mapping[str, Any], compiling: Sequence[float], sha256: str | None
) -> dict[str, Any]:
    own, points = series_conditions.of_case(case, sha256), _points(case, compiling)
    series = series_conditions.key(shared, own) if own is not None and points else None
    return {"conditions": own, "series": series, "points": points}


def _points(case: CaseSummary, compiling: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Medians with intervals, of a case whose numbers may be quoted."""
    if case.status != "ok" or case.protocol is None:
        return {}
    found: dict[str, Estimate | None] = {
        "cold_seconds": case.cold_seconds,
        "compile": median_estimate(compiling) if compiling else None,
        "warm_call_seconds": case.warm_call_seconds,
    }
    return {
        name: {k: v for k, v in to_json(e).items() if k in ("median", "low", "high", "n")}
        for name, e in found.items()
        if e is not None and all(_PLAUSIBLE[0] < x < _PLAUSIBLE[1] for x in (e.low, e.high))
    }
