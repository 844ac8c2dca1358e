"""A report made again from the runs beside it and from the snapshot, to be held against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from firstlight.compare.conditions import machine_class
from firstlight.compare.environments import state
from firstlight.records import to_json
from firstlight.replication.agreement import replicate_cases, replicate_ratios
from firstlight.replication.repeating import pairing, run_replication
from firstlight.snapshot.opening import Snapshot
from firstlight.snapshot.plausibility.whole_run import untrue
from firstlight.snapshot.raw_runs import RawRun
from firstlight.snapshot.recomputing import differences

Plain = Mapping[str, Any]
#: Of so many places in one record the first are named.
_MAX_NAMED = 3


def misdescribed(report: Plain, said: Plain, raw: RawRun) -> list[str]:
    """Where a report says something else of a run than the run itself, which it follows from."""
    found = [f"{raw.folder}: {text}" for text in untrue(raw)[:_MAX_NAMED]]
    run = raw.run
    wanted = {"id": run.id, "machine_here": machine_class(run.host), "state_here": state(run)}
    found += _differing({name: said[name] for name in wanted}, wanted, raw.folder)
    told = {case["case"]: case for case in report["cases"] if case["run"] == raw.folder}
    if [*told] != [case.case for case in run.cases]:
        return [*found, f"{raw.folder}: the cases of the report are not those of the run"]
    for case in run.cases:
        becoming = {"status_here": case.status, "correctness_here": to_json(case.correctness)}
        own = {name: told[case.case][name] for name in becoming}
        found += _differing(own, becoming, f"{case.case!r:.100}")
    return found


def miscomputed(report: Plain, snapshot: Snapshot, runs: Mapping[str, RawRun]) -> Iterator[str]:
    """Where a report is not what follows from the snapshot and the runs that repeated it."""
    title = str(snapshot.manifest["publication"]["title"])
    if report["snapshot"]["title"] != title:
        yield f"the snapshot is called {title!r:.80}"
    pairs = []
    for said in report["runs"]:
        number, raw = snapshot.folders.index(said["folder"]), runs[said["folder"]]
        pairs.append(pairing(snapshot, number, raw.plan.cases, raw.run, raw.samples))
        wanted = to_json(run_replication(snapshot, number, raw.run, tuple(said["notes"])))
        yield from _differing(said, wanted, raw.folder)
    for name, found in (("cases", replicate_cases(pairs)), ("ratios", replicate_ratios(pairs))):
        yield from _differing(report[name], to_json(found), name)
    repeated = {(case["run"], case["case"]) for case in report["cases"]}
    for left in report["left_out"]:
        if (left["run"], left["case"]) in repeated:
            yield f"{left['case']!r:.100} is said to be left out, and was measured"


def _differing(said: Any, wanted: Any, where: str) -> list[str]:
    return list(islice(differences(said, wanted, where), _MAX_NAMED))
