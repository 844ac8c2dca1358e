"""The data that the site keeps of a snapshot: for its row in the list, and for trends.

Two points may be on one line only if machine, protocol and data are equal, as `compare.conditions`
defines; the hash of these conditions is the key of the line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from firstlight.compare.conditions import (
    DATA_FIELDS,
    SETTINGS_FIELDS,
    machine_class,
    steering_variables,
)
from firstlight.compare.environments import versions
from firstlight.records import CaseSummary, Estimate, JsonObject, Run, Sample, noisy_share, to_json
from firstlight.snapshot.opening import Snapshot
from firstlight.snapshot.strict_json import compact
from firstlight.statistics.intervals import median_estimate

#: The quantities that have a trend.
TRENDS = ("cold_seconds", "compile", "warm_call_seconds")
#: The range of seconds that is drawn: a picosecond to thirty years.
_PLAUSIBLE = (1e-12, 1e9)
_TITLE = 300  # characters in a list
#: Plain values, as in `data.json`.
Facts = JsonObject


def facts_of(snapshot: Snapshot, samples: Sequence[Sequence[Sample]]) -> Facts:
    """Plain values for `data.json`; `samples[i]` are those of `snapshot.runs[i]`."""
    manifest, report = snapshot.manifest, snapshot.validation
    runs = zip(snapshot.runs, samples, manifest["runs"], strict=True)
    return {
        "schema": "firstlight.site.snapshot",
        "schema_version": 1,
        "id": snapshot.id,
        "title": str(manifest["publication"]["title"])[:_TITLE],
        "measured": str(manifest["measured_to"]),
        "passed": report["cases_passed"],
        "asked": report["cases_total"] - report["cases_skipped"],
        "runs": [_run(run, own, about) for run, own, about in runs],
    }


def _run(run: Run, samples: Sequence[Sample], about: Facts) -> Facts:
    hashes = {case["case"]: case["dataset"]["sha256"] for case in about["cases"]}
    compiling: dict[str, list[float]] = {}
    for sample in samples:
        seconds = sample.cold.phases_seconds.get("compile") if sample.cold else None
        if sample.kind == "timed" and seconds:
            compiling.setdefault(sample.case, []).append(seconds)
    shared = run_conditions(run)
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
    case: CaseSummary, shared: Facts, compiling: Sequence[float], sha256: str | None
) -> Facts:
    own, points = case_conditions(case, sha256), _points(case, compiling)
    key = series_key(shared, own) if own is not None and points else None
    return {"conditions": own, "series": key, "points": points}


def _points(case: CaseSummary, compiling: Sequence[float]) -> dict[str, Facts]:
    """Medians with intervals; {} for a case whose numbers must not be quoted."""
    if case.status != "ok" or case.protocol is None:
        return {}
    compiled = median_estimate(compiling) if compiling else None
    found: tuple[Estimate | None, ...] = (case.cold_seconds, compiled, case.warm_call_seconds)
    return {
        name: {"median": e.median, "low": e.low, "high": e.high, "n": e.n}
        for name, e in zip(TRENDS, found, strict=True)
        if e is not None and all(_PLAUSIBLE[0] < x < _PLAUSIBLE[1] for x in (e.low, e.high))
    }


def run_conditions(run: Run) -> Facts:
    """The conditions of all cases of a run."""
    return {
        "machine": machine_class(run.host),
        "settings": {name: to_json(run.settings.get(name)) for name in SETTINGS_FIELDS},
        "environment": steering_variables(run),
    }


def case_conditions(case: CaseSummary, data_sha256: str | None) -> Facts | None:
    """The conditions of one case; None if it has no protocol."""
    if case.protocol is None:
        return None
    plain = to_json(case.protocol)
    return {
        "data": {**{name: plain[name] for name in DATA_FIELDS}, "sha256": data_sha256},
        "protocol": {name: value for name, value in plain.items() if name not in DATA_FIELDS},
    }


def series_key(run: Facts, case: Facts) -> str:
    """A hash of the conditions: equal exactly for points that may be joined."""
    parts = [run["machine"], run["settings"], run["environment"], case["data"], case["protocol"]]
    return hashlib.sha256(compact(parts)).hexdigest()[:16]
