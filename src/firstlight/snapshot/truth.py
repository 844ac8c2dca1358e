"""Where a run says what does not follow from its plan and its samples."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from firstlight.records import CaseSummary, to_json
from firstlight.snapshot.contradictions import contradictions
from firstlight.snapshot.layout import RUN
from firstlight.snapshot.raw_runs import RawRun
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
    return Judgement(tuple(contradictions(raw)), tuple(summaries), wording)


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
