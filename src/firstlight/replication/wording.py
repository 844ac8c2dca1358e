"""What is said of a replicated case: sentences made of the values in a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firstlight.compare.conditions import busy_share, disturbance
from firstlight.compare.differences import Difference, in_words
from firstlight.compare.runs import DRIFT
from firstlight.compare.verdicts import change, too_few
from firstlight.records import from_json
from firstlight.replication.agreement import ALPHA, Reason
from firstlight.statistics.effects import Effect

Plain = Mapping[str, Any]


def case_reasons(report: Plain) -> list[list[str]]:
    """Of every case of a report in its plain form: why its verdict is what it is."""
    states = {run["folder"]: run for run in report["runs"]}
    comparisons = sum(delta["judged"] for case in report["cases"] for delta in case["deltas"])
    return [[*_reasons(case, states.get(case["run"]), comparisons)] for case in report["cases"]]


def _reasons(case: Plain, run: Plain | None, comparisons: int) -> Iterator[str]:
    if case["status_here"] == "failed":
        yield f"failed here: {case['failure_here']}"
        return
    if case["verdict"] == "not comparable":
        for plain in case["differences"]:
            yield in_words(from_json(Difference, plain), "published", "here")
        if case["status_here"] != "ok":
            yield f"{case['status_here']} here: {case['failure_here']}"
        return
    for state, where in (("state_published", "that was published"), ("state_here", "here")):
        share = busy_share(run[state]) if run is not None else None
        if share is not None:
            yield disturbance(share, where)
    if not any(delta["judged"] for delta in case["deltas"]):
        yield "no quantity of it can be judged"
        return
    for delta in case["deltas"]:
        if delta["reason"] is not None:
            yield f"{delta['quantity']}: {_why(delta, comparisons)}"


def _why(delta: Plain, comparisons: int) -> str:
    effect, reason = from_json(Effect, delta["effect"]), Reason(delta["reason"])
    span = f"{change(effect.low)} to {change(effect.high)}"
    beyond = f"{change(effect.ratio)}, but"
    return {
        Reason.BEYOND_DRIFT: f"{change(effect.ratio)} ({span}): beyond the {DRIFT:.0%} of drift",
        Reason.PARTLY_BEYOND_DRIFT: f"{span}: partly beyond the {DRIFT:.0%} that two jobs may "
        "drift apart",
        Reason.NOT_SIGNIFICANT: f"{beyond} p is {delta['p_adjusted']:.2g} after Holm",
        Reason.NEVER_SIGNIFICANT: f"{beyond} "
        + too_few(effect, "processes per side", comparisons, ALPHA),
        Reason.NO_INTERVAL: f"{effect.n} processes are too few for an interval of 95 %",
        Reason.TWO_SPEEDS: "not judged: the published processes ran at different speeds",
    }[reason]
