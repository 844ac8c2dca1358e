"""The conclusions of a report in its plain form, drawn again from the numbers in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from firstlight.compare.quantities import GATED, of_sample
from firstlight.compare.runs import DRIFT
from firstlight.records import PHASES, Sample, from_json, to_json
from firstlight.replication.agreement import (
    ALPHA,
    VERDICTS,
    Reason,
    is_disturbed,
    judge,
    order_of,
    paired_values,
    too_many,
    verdict_of,
)
from firstlight.statistics.effects import Effect, holm, paired_effect
from firstlight.statistics.intervals import median_estimate

Plain = Mapping[str, Any]


def misjudged(report: Plain) -> list[str]:
    """What in a report is not the verdict, reason or count that its own effects lead to."""
    found = [
        f"{name} is {report[name]!r:.30}; verdicts are made with {own:g}"
        for name, own in (("drift", DRIFT), ("alpha", ALPHA))
        if report[name] != own
    ]
    deltas = [d for case in report["cases"] for d in case["deltas"] if d["judged"]]
    adjusted = iter(
        zip(holm([d["effect"]["p"] for d in deltas]), too_many(_sizes(deltas)), strict=True)
    )
    states = {run["folder"]: run for run in report["runs"]}
    for case in report["cases"]:
        name, run = f"{case['case']!r:.100}", states.get(case["run"])
        if run is None:
            found.append(f"{name}: its run {case['run']!r:.40} is not in the report")
            continue
        found += [f"{name}: {text}" for text in _wrong_deltas(case, adjusted)]
        found += [f"{name}: {text}" for text in _wrong_case(case, run)]
    found += _wrong_ratios(report["ratios"])
    counts = {v: sum(case["verdict"] == v for case in report["cases"]) for v in VERDICTS}
    if counts != report["verdicts"]:
        found.append("the counts of verdicts are not those of the cases")
    return found


def _wrong_deltas(case: Plain, adjusted: Iterator[tuple[float, int | None]]) -> Iterator[str]:
    for delta in case["deltas"]:
        name = f"{delta['quantity']!r:.40}"
        if delta["judged"]:
            p, many = next(adjusted)
            verdict, reason = judge(_effect(delta["effect"]), p, many)
            if (delta["verdict"], delta["reason"]) != (verdict, reason):
                yield f"{name} is said to be {delta['verdict']!r}; its effect says {verdict!r}"
            if not _close(delta["p_adjusted"], p):
                yield f"{name}: p after Holm's correction is {p:.3g}"
        elif delta["verdict"] not in ("undecided", "not comparable"):
            yield f"{name} is {delta['verdict']!r} although it was not judged"
        elif (
            delta["verdict"] == "undecided"
            and delta["reason"] != Reason.TWO_SPEEDS
            and delta["quantity"] in {*GATED} - {*PHASES}
        ):
            yield f"{name} decides, and was not judged"


def _wrong_case(case: Plain, run: Plain) -> Iterator[str]:
    judged = [d["verdict"] for d in case["deltas"] if d["judged"]]
    busy = is_disturbed(run["state_published"], run["state_here"])
    verdict = verdict_of(case["status_here"], bool(case["differences"]), judged, busy)
    if case["verdict"] != verdict:
        yield f"the verdict is {case['verdict']!r}; its effects say {verdict!r}"
    comparable = case["status_here"] == "ok" and not case["differences"]
    if any((d["verdict"] == "not comparable") is comparable for d in case["deltas"]):
        yield "its quantities do not agree on whether it can be compared"
    if (case["failure_here"] is None) != (case["status_here"] == "ok"):
        yield f"{case['status_here']!r} here, and what went wrong does not fit"


def _wrong_ratios(ratios: Sequence[Plain]) -> Iterator[str]:
    adjusted = holm([r["effect"]["p"] for r in ratios])
    for ratio, p, many in zip(ratios, adjusted, too_many(_sizes(ratios)), strict=True):
        name = f"{ratio['case']!r:.100} over {ratio['against']!r:.100}, {ratio['quantity']!r:.40}"
        verdict, reason = judge(_effect(ratio["effect"]), p, many)
        if (ratio["verdict"], ratio["reason"]) != (verdict, reason):
            yield f"{name} is said to be {ratio['verdict']!r}; its effect says {verdict!r}"
        if not _close(ratio["p_adjusted"], p):
            yield f"{name}: p after Holm's correction is {p:.3g}"
        order = order_of(_effect(ratio["published"]), _effect(ratio["here"]))
        if ratio["order"] != order:
            yield f"{name}: the order is said to be {ratio['order']!r}; both ratios say {order!r}"


def misreported(report: Plain, folder: str, samples: Sequence[Sample]) -> list[str]:
    """What in a report is not the value that the samples measured here lead to."""
    found = []
    for case in report["cases"]:
        own = [s for s in samples if s.case == case["case"] and s.kind == "timed"]
        values = [of_sample(sample) for sample in own] if case["run"] == folder else []
        for delta in case["deltas"] if case["run"] == folder else ():
            known = [v[delta["quantity"]] for v in values if delta["quantity"] in v]
            if not known or not _alike(to_json(median_estimate(known)), delta["here"]):
                found.append(f"{case['case']!r:.100}: {delta['quantity']!r:.40} here is another")
    for ratio in report["ratios"]:
        if ratio["run"] == folder:
            pairs = paired_values(samples, ratio["case"], ratio["against"], ratio["quantity"])
            here = paired_effect([b for _, b in pairs], [a for a, _ in pairs]) if pairs else None
            if not _alike(to_json(here), ratio["here"]):
                found.append(f"{ratio['case']!r:.100}: its ratio here is another")
    return found


def _sizes(compared: Sequence[Plain]) -> list[tuple[int, int]]:
    return [(one["published"]["n"], one["here"]["n"]) for one in compared]


def _effect(plain: Plain) -> Effect:
    return from_json(Effect, plain)


def _alike(one: Any, other: Any) -> bool:
    """Whether two records have the same numbers, but for the last digits."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False
    return {*one} == {*other} and all(_close(one[name], other[name]) for name in one)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-300)
    return bool(one == other)
