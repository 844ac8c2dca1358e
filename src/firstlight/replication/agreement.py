"""Published and repeated values held against each other: agrees, differs, or cannot be told.

Two jobs on one machine come out apart by up to `DRIFT` for no reason. So a quantity *agrees* if the
whole interval of its change lies within that band, *differs* if it lies outside of it and is
significant after Holm's correction, and is *undecided* in between.

On another kind of machine absolute times say nothing. The ratio of two cases of the same run does:
its values are paired by round, so what the machine did to both at a time is not in it.

Where other programs took half of the CPU or more when one of both runs began, its times tell of
them: such a case is undecided, whatever its intervals are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from firstlight.compare.conditions import busy_share
from firstlight.compare.differences import (
    Difference,
    Kind,
    case_differences,
    machine_differences,
)
from firstlight.compare.environments import state
from firstlight.compare.quantities import decides, in_order, of_sample
from firstlight.compare.runs import DRIFT, Measured
from firstlight.records import CaseSummary, Correctness, Estimate, Sample
from firstlight.statistics.effects import (
    Effect,
    holm,
    paired_effect,
    smallest_p,
    unpaired_effect,
)
from firstlight.statistics.intervals import median_estimate
from firstlight.statistics.steady_state import spread

ALPHA = 0.05
VERDICTS = ("agrees", "differs", "undecided", "not comparable")
_RATIOS = ("cold_seconds", "warm_call_seconds")


class Reason(StrEnum):
    """What a verdict on a quantity rests on, where the interval alone does not say it."""

    BEYOND_DRIFT = "beyond drift"  # and significant: it differs
    PARTLY_BEYOND_DRIFT = "partly beyond drift"
    NOT_SIGNIFICANT = "not significant"  # beyond, but p is too large after Holm's correction
    NEVER_SIGNIFICANT = "never significant"  # with so few values in so many comparisons
    NO_INTERVAL = "no interval"  # too few values for one of 95 %
    TWO_SPEEDS = "two speeds"  # the published processes differ too much among themselves


@dataclass(frozen=True)
class Delta:
    """One quantity of one case, published and here."""

    quantity: str
    judged: bool  # False: told, but no part of the verdict
    published: Estimate
    here: Estimate
    effect: Effect  # how many times as long it takes here
    p_adjusted: float
    verdict: str  # one of VERDICTS
    reason: Reason | None = None


@dataclass(frozen=True)
class CaseReplication:
    """What came of one case."""

    run: str
    case: str
    verdict: str  # one of VERDICTS
    differences: tuple[Difference, ...]  # what forbids comparing its times
    correctness_published: Correctness | None
    correctness_here: Correctness | None
    status_here: str
    failure_here: str | None  # what went wrong, where the status is not ok
    deltas: tuple[Delta, ...]


@dataclass(frozen=True)
class RatioReplication:
    """How many times as long one case takes as another of the same run, published and here."""

    run: str
    case: str
    against: str
    quantity: str
    published: Effect
    here: Effect
    effect: Effect  # the ratio here over the published one
    p_adjusted: float
    order: str  # same, reversed or undecided: which of both is the slower one
    verdict: str
    reason: Reason | None = None


@dataclass(frozen=True)
class Pairing:
    """A published run and its repetition, and what the hashes of their data are, by case."""

    folder: str
    published: Measured
    here: Measured
    data_published: Mapping[str, str | None]
    data_here: Mapping[str, str | None]


def replicate_cases(pairings: Sequence[Pairing]) -> list[CaseReplication]:
    """Every case that was measured again, with the verdict on it."""
    drafts = [
        (pairing, case, _differences(pairing, case.case))
        for pairing in pairings
        for case in pairing.here.run.cases
    ]
    deltas = [list(_deltas(p, case, not found)) for p, case, found in drafts]
    judged = [d for own in deltas for d in own if d.judged]
    adjusted = iter(holm([d.effect.p for d in judged]))
    many = iter(too_many([(d.published.n, d.here.n) for d in judged]))
    found = []
    for (pairing, case, differences), own in zip(drafts, deltas, strict=True):
        final = [_judged(d, next(adjusted), next(many)) if d.judged else d for d in own]
        found.append(_case(pairing, case, differences, final))
    return found


def _differences(pairing: Pairing, case: str) -> list[Difference]:
    """What forbids comparing the times of a case; nothing if they can be."""
    base, head = pairing.published.run, pairing.here.run
    found = [*machine_differences(base, head), *case_differences(base, head, case)]
    one, other = pairing.data_published.get(case), pairing.data_here.get(case)
    if one is not None and other is not None and one != other:
        found.append(Difference(Kind.CONTENTS, "input", one, other))
    return found


def _is_portable(found: Difference) -> bool:
    """Whether it changes the times of all cases alike, so that ratios between cases remain."""
    return found.kind in (Kind.MACHINE, Kind.ENVIRONMENT) or (found.kind, found.field) in (
        (Kind.PROTOCOL, "threads"),
        (Kind.SETTING, "affinity"),
    )


def _summary(measured: Measured, case: str) -> CaseSummary:
    return next(c for c in measured.run.cases if c.case == case)


def _timed(samples: Sequence[Sample], case: str) -> list[Sample]:
    return [s for s in samples if s.case == case and s.kind == "timed"]


def _deltas(pairing: Pairing, case: CaseSummary, same: bool) -> Iterator[Delta]:
    comparable = same and case.status == "ok"
    sides = [
        [of_sample(s) for s in _timed(m.samples, case.case)]
        for m in (pairing.published, pairing.here)
    ]
    present = [{name for values in side for name in values} for side in sides]
    for name in in_order(dict.fromkeys(present[0] & present[1])):
        one, other = ([values[name] for values in side if name in values] for side in sides)
        asked = comparable and decides(name, sides[:1])
        apart = asked and spread(one) is not None
        yield Delta(
            quantity=name,
            judged=asked and not apart,
            published=median_estimate(one),
            here=median_estimate(other),
            effect=(effect := unpaired_effect(one, other)),
            p_adjusted=effect.p,
            verdict="undecided" if comparable else "not comparable",
            reason=Reason.TWO_SPEEDS if apart else None,
        )


def _judged(delta: Delta, p_adjusted: float, many: int | None) -> Delta:
    verdict, reason = judge(delta.effect, p_adjusted, many)
    return replace(delta, p_adjusted=p_adjusted, verdict=verdict, reason=reason)


def too_many(sizes: Sequence[tuple[int, int]]) -> list[int | None]:
    """Of each comparison how many there are, where so few values could never be significant."""
    smallest = holm([smallest_p(one, other, paired=False) for one, other in sizes])
    return [len(sizes) if p >= ALPHA else None for p in smallest]


def judge(
    effect: Effect, p_adjusted: float, many: int | None = None, band: float = DRIFT
) -> tuple[str, Reason | None]:
    """The verdict on one change, and what it rests on; `many` is that of `too_many`."""
    far = 1 + band
    if effect.confidence < 0.95:
        return "undecided", Reason.NO_INTERVAL
    if effect.low >= 1 / far and effect.high <= far:
        return "agrees", None
    if effect.low > far or effect.high < 1 / far:
        if p_adjusted < ALPHA:
            return "differs", Reason.BEYOND_DRIFT
        return "undecided", Reason.NOT_SIGNIFICANT if many is None else Reason.NEVER_SIGNIFICANT
    return "undecided", Reason.PARTLY_BEYOND_DRIFT


def _case(
    pairing: Pairing, case: CaseSummary, differences: Sequence[Difference], deltas: Sequence[Delta]
) -> CaseReplication:
    busy = is_disturbed(state(pairing.published.run), state(pairing.here.run))
    judged = [d.verdict for d in deltas if d.judged]
    return CaseReplication(
        run=pairing.folder,
        case=case.case,
        verdict=verdict_of(case.status, bool(differences), judged, busy),
        differences=tuple(differences),
        correctness_published=_summary(pairing.published, case.case).correctness,
        correctness_here=case.correctness,
        status_here=case.status,
        failure_here=None if case.status == "ok" else case.reason,
        deltas=tuple(deltas),
    )


def verdict_of(status: str, differs: bool, judged: Sequence[str], busy: bool) -> str:
    """The verdict on a case: from its status here, and from those on its judged quantities.

    `differs`: something does that forbids comparing its times.
    """
    if status == "failed":  # a wrong result is a finding on any machine
        return "differs"
    if differs or status != "ok":
        return "not comparable"
    if busy or not judged:
        return "undecided"
    return next((v for v in ("differs", "undecided") if v in judged), "agrees")


def is_disturbed(*states: Mapping[str, Any]) -> bool:
    """Whether other programs disturbed a run so much that its times decide nothing."""
    return any(busy_share(found) is not None for found in states)


def replicate_ratios(pairings: Sequence[Pairing]) -> list[RatioReplication]:
    """Every case over the plainest one of its workload: numpy, where there is one."""
    found = [ratio for pairing in pairings for ratio in _ratios(pairing)]
    adjusted = holm([ratio.effect.p for ratio in found])
    many = too_many([(ratio.published.n, ratio.here.n) for ratio in found])
    return [_judged_ratio(*one) for one in zip(found, adjusted, many, strict=True)]


def _ratios(pairing: Pairing) -> Iterator[RatioReplication]:
    groups: dict[tuple[str, str], list[CaseSummary]] = {}
    for case in pairing.here.run.cases:
        portable = all(map(_is_portable, _differences(pairing, case.case)))
        if case.status == "ok" and portable:
            groups.setdefault((case.workload, case.size), []).append(case)
    for members in groups.values():
        reference = min(members, key=_plainness)
        for case in members:
            if case is not reference:
                for quantity in _RATIOS:
                    yield from _ratio(pairing, case.case, reference.case, quantity)


def _plainness(case: CaseSummary) -> tuple[bool, bool, str]:
    """NumPy first, then what compiles nothing."""
    return case.backend != "numpy", not case.backend.endswith(("python", "eager")), case.case


def _ratio(pairing: Pairing, case: str, against: str, quantity: str) -> Iterator[RatioReplication]:
    sides = [
        paired_values(m.samples, case, against, quantity) for m in (pairing.published, pairing.here)
    ]
    if not all(sides):
        return
    own = [paired_effect([b for _, b in side], [a for a, _ in side]) for side in sides]
    published, here = ([a / b for a, b in side] for side in sides)
    yield RatioReplication(
        run=pairing.folder,
        case=case,
        against=against,
        quantity=quantity,
        published=own[0],
        here=own[1],
        effect=(effect := unpaired_effect(published, here)),
        p_adjusted=effect.p,
        order=order_of(*own),
        verdict="undecided",
    )


def paired_values(
    samples: Sequence[Sample], case: str, against: str, quantity: str
) -> list[tuple[float, float]]:
    """(case, other) of every round in which both have a value."""
    one, other = (
        {s.index: of_sample(s).get(quantity) for s in _timed(samples, name)}
        for name in (case, against)
    )
    pairs = ((one[i], other.get(i)) for i in sorted(one))
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def order_of(published: Effect, here: Effect) -> str:
    sides = [1 if e.low > 1 else -1 if e.high < 1 else 0 for e in (published, here)]
    if 0 in sides:
        return "undecided"
    return "same" if sides[0] == sides[1] else "reversed"


def _judged_ratio(ratio: RatioReplication, p_adjusted: float, many: int | None) -> RatioReplication:
    verdict, reason = judge(ratio.effect, p_adjusted, many)
    return replace(ratio, p_adjusted=p_adjusted, verdict=verdict, reason=reason)
