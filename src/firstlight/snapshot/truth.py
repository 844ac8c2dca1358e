"""Where a run says what does not follow from its plan and its samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from firstlight.records import CaseSummary, to_json
from firstlight.snapshot.layout import RUN
from firstlight.snapshot.proofs import unproven_labels
from firstlight.snapshot.raw_runs import RawRun, has_number
from firstlight.snapshot.recomputing import differences, recomputed

#: Sentences of the harness about how it measures. A later Firstlight may word them otherwise; they
#: come from no sample, so they are not held against ours.
_WORDING = ("cold_process", "warm_process", "warm_window", "warm_up", "bytecode")


@dataclass(frozen=True)
class Judgement:
    """What is wrong with a run, in words."""

    contradictions: tuple[str, ...]  # whatever statistics are used, this cannot be true
    summaries: tuple[str, ...]  # what these statistics do not give for these samples
    wording: bool  # whether its protocols are worded otherwise than ours

    @property
    def untrue(self) -> tuple[str, ...]:
        return (*self.contradictions, *self.summaries)


def judge(raw: RawRun) -> Judgement:
    """Hold a run against its plan and samples."""
    found = recomputed(raw.plan, raw.samples, raw.folder)
    if [case.case for case in raw.run.cases] != [case.case for case in found]:
        return Judgement(("run.json does not have the cases of plan.json",), (), False)
    summaries: list[str] = []
    wording = False
    for published, computed in zip(raw.run.cases, found, strict=True):
        one, other = _without_wording(published), _without_wording(computed)
        summaries += [
            f"a summary does not follow from the samples: {difference}"
            for difference in differences(one[0], other[0], published.case)
        ]
        wording = wording or one[1] != other[1]
    return Judgement(tuple(_contradictions(raw)), tuple(summaries), wording)


def resummarised(raw: RawRun) -> RawRun:
    """The same run with the summaries that these statistics give for its samples."""
    cases = recomputed(raw.plan, raw.samples, raw.folder)
    complete = all(case.status != "incomplete" for case in cases)
    run = replace(raw.run, cases=cases, complete=complete)
    text = json.dumps(to_json(run), indent=1, allow_nan=False) + "\n"
    return replace(raw, run=run, files={**raw.files, RUN: text.encode()})


def _without_wording(case: CaseSummary) -> tuple[dict[str, Any], dict[str, Any]]:
    """The case without sentences about how it was measured, and these."""
    plain: dict[str, Any] = to_json(case)
    protocol = plain["protocol"] or {}
    words = {key: protocol.pop(key) for key in _WORDING if key in protocol}
    return plain, words


def _contradictions(raw: RawRun) -> Iterator[str]:
    for field, (said, planned) in _said_twice(raw, raw.plan).items():
        for difference in differences(said, planned, field):
            yield f"run.json differs from plan.json: {difference}"
    places = [(s.case, s.index) for s in raw.samples if s.kind == "timed"]
    if len(set(places)) != len(places):
        yield "samples.jsonl has a timed process twice"
    for case in raw.run.cases:
        yield from _unsupported(raw, case)
    if raw.run.complete != all(c.status != "incomplete" for c in raw.run.cases):
        yield "run.json is wrong about being complete"


def _said_twice(raw: RawRun, plan: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{field: (in run.json, in plan.json)} of what both say."""
    run, warnings = raw.run, plan.get("warnings") or []
    return {
        "id": (run.id, f"{plan.get('created_at')}-{plan.get('target')}"),
        "created_at": (run.created_at, plan.get("created_at")),
        "settings": (run.settings, {"target": plan.get("target"), **plan["settings"]}),
        "warnings": (run.warnings[: len(warnings)], warnings),
        "harness": (run.harness, plan.get("harness")),
        "host": ({k: v for k, v in run.host.items() if k != "load_after"}, plan.get("host")),
    }


def _unsupported(raw: RawRun, case: CaseSummary) -> Iterator[str]:
    """Numbers that nothing stands behind."""
    if not has_number(case):
        return
    if case.protocol is None:
        yield f"{case.case} has a number and no protocol"
    if case.correctness is None or not case.correctness.passed:
        yield f"{case.case} has a number and no correct result"
    objections = unproven_labels(raw.planned[case.case], list(raw.by_case[case.case]))
    if objections:
        yield f"{case.case} has a number and its label is not proven: {objections[0]}"
