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
from typing import Any

from firstlight.gate.comparability import (
    busy_share,
    case_differences,
    disturbance,
    machine_differences,
)
from firstlight.gate.comparison import change, too_few
from firstlight.gate.decision import GATED, LEAST_SHARE
from firstlight.gate.quantities import in_order, of_sample, restless
from firstlight.gate.runs import DRIFT, Measured
from firstlight.records import PHASES, CaseSummary, Correctness, Estimate, Sample
from firstlight.replication.environment import state
from firstlight.statistics.comparison import (
    Effect,
    holm,
    paired_effect,
    smallest_p,
    unpaired_effect,
)
from firstlight.statistics.intervals import median, median_estimate

ALPHA = 0.05
NOTHING_JUDGED = "no quantity of it can be judged"
VERDICTS = ("agrees", "differs", "undecided", "not comparable")
#: Differences that change times of all cases alike, so that ratios between cases remain.
_PORTABLE = ("machine: ", "environment: ", "protocol, threads: ", "setting affinity: ")
_RATIOS = ("cold_seconds", "warm_call_seconds")


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
    reason: str | None = None


@dataclass(frozen=True)
class CaseReplication:
    """What came of one case."""

    run: str
    case: str
    verdict: str  # one of VERDICTS
    reasons: tuple[str, ...]
    correctness_published: Correctness | None
    correctness_here: Correctness | None
    status_here: str
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
    reason: str | None = None


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
        (pairing, case, _obstacles(pairing, case.case))
        for pairing in pairings
        for case in pairing.here.run.cases
    ]
    deltas = [list(_deltas(p, case.case, why)) for p, case, why in drafts]
    judged = [d for own in deltas for d in own if d.judged]
    adjusted = iter(holm([d.effect.p for d in judged]))
    many = iter(too_many([(d.published.n, d.here.n) for d in judged]))
    found = []
    for (pairing, case, obstacles), own in zip(drafts, deltas, strict=True):
        final = [_judged(d, next(adjusted), next(many)) if d.judged else d for d in own]
        found.append(_case(pairing, case, obstacles, final))
    return found


def _obstacles(pairing: Pairing, case: str) -> list[str]:
    """Why the times of a case cannot be compared; nothing if they can."""
    base, head = pairing.published.run, pairing.here.run
    found = [*machine_differences(base, head), *case_differences(base, head, case)]
    one, other = pairing.data_published.get(case), pairing.data_here.get(case)
    if one is not None and other is not None and one != other:
        found.append(f"data: the arrays have another SHA-256 ({one[:16]}…, here {other[:16]}…)")
    status = _summary(pairing.here, case).status
    if status != "ok":
        found.append(f"{status} here")
    return [
        text.replace("in the base", "published").replace("in the head", "here") for text in found
    ]


def _summary(measured: Measured, case: str) -> CaseSummary:
    return next(c for c in measured.run.cases if c.case == case)


def _timed(samples: Sequence[Sample], case: str) -> list[Sample]:
    return [s for s in samples if s.case == case and s.kind == "timed"]


def _deltas(pairing: Pairing, case: str, obstacles: Sequence[str]) -> Iterator[Delta]:
    sides = [
        [of_sample(s) for s in _timed(m.samples, case)] for m in (pairing.published, pairing.here)
    ]
    present = [{name for values in side for name in values} for side in sides]
    for name in in_order(dict.fromkeys(present[0] & present[1])):
        one, other = ([values[name] for values in side if name in values] for side in sides)
        note = "; ".join(obstacles) or None
        decides = name in GATED and (name not in PHASES or _share(sides[0], name) >= LEAST_SHARE)
        if note is None and decides:
            note = (restless(one) or "").replace("of the base", "published") or None
        yield Delta(
            quantity=name,
            judged=decides and note is None,
            published=median_estimate(one),
            here=median_estimate(other),
            effect=(effect := unpaired_effect(one, other)),
            p_adjusted=effect.p,
            verdict="not comparable" if obstacles else "undecided",
            reason=None if obstacles else note,
        )


def _share(side: Sequence[Mapping[str, float]], phase: str) -> float:
    return median([v[phase] / v["cold_seconds"] for v in side if phase in v])


def _judged(delta: Delta, p_adjusted: float, many: int | None) -> Delta:
    verdict, reason = judge(delta.effect, p_adjusted, many)
    return replace(delta, p_adjusted=p_adjusted, verdict=verdict, reason=reason)


def too_many(sizes: Sequence[tuple[int, int]]) -> list[int | None]:
    """Of each comparison how many there are, where so few values could never be significant."""
    smallest = holm([smallest_p(one, other, paired=False) for one, other in sizes])
    return [len(sizes) if p >= ALPHA else None for p in smallest]


def judge(
    effect: Effect, p_adjusted: float, many: int | None = None, band: float = DRIFT
) -> tuple[str, str | None]:
    """The verdict on one change, and why it is none; `many` is that of `too_many`."""
    far = 1 + band
    if effect.confidence < 0.95:
        return "undecided", f"{effect.n} processes are too few for an interval of 95 %"
    if effect.low >= 1 / far and effect.high <= far:
        return "agrees", None
    span = f"{change(effect.low)} to {change(effect.high)}"
    if effect.low > far or effect.high < 1 / far:
        if p_adjusted < ALPHA:
            return "differs", f"{change(effect.ratio)} ({span}): beyond the {band:.0%} of drift"
        why = f"p is {p_adjusted:.2g} after Holm"
        if many is not None:
            why = too_few(effect, "processes per side", many, ALPHA)
        return "undecided", f"{change(effect.ratio)}, but {why}"
    return "undecided", f"{span}: partly beyond the {band:.0%} that two jobs may drift apart"


def _case(
    pairing: Pairing, case: CaseSummary, obstacles: Sequence[str], deltas: Sequence[Delta]
) -> CaseReplication:
    verdicts = [d.verdict for d in deltas if d.judged]
    busy = disturbances(state(pairing.published.run), state(pairing.here.run))
    told = [f"{d.quantity}: {d.reason}" for d in deltas if d.reason]
    reasons = [*busy, *told] if verdicts else [*busy, NOTHING_JUDGED]
    if case.status == "failed":  # a wrong result is a finding on any machine
        verdict, reasons = "differs", [f"failed here: {case.reason}"]
    elif obstacles:
        verdict, reasons = "not comparable", list(obstacles)
    else:
        verdict = overall(verdicts, bool(busy))
    return CaseReplication(
        run=pairing.folder,
        case=case.case,
        verdict=verdict,
        reasons=tuple(reasons),
        correctness_published=_summary(pairing.published, case.case).correctness,
        correctness_here=case.correctness,
        status_here=case.status,
        deltas=tuple(deltas),
    )


def overall(verdicts: Sequence[str], busy: bool) -> str:
    """The verdict on a case whose times are comparable, from those on its judged quantities."""
    if busy or not verdicts:
        return "undecided"
    return next((v for v in ("differs", "undecided") if v in verdicts), "agrees")


def disturbances(published: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Which of both runs other programs disturbed so much that its times decide nothing."""
    return [
        disturbance(share, where)
        for found, where in ((published, "that was published"), (here, "here"))
        if (share := busy_share(found)) is not None
    ]


def replicate_ratios(pairings: Sequence[Pairing]) -> list[RatioReplication]:
    """Every case over the plainest one of its workload: numpy, where there is one."""
    found = [ratio for pairing in pairings for ratio in _ratios(pairing)]
    adjusted = holm([ratio.effect.p for ratio in found])
    many = too_many([(ratio.published.n, ratio.here.n) for ratio in found])
    return [_judged_ratio(*one) for one in zip(found, adjusted, many, strict=True)]


def _ratios(pairing: Pairing) -> Iterator[RatioReplication]:
    groups: dict[tuple[str, str], list[CaseSummary]] = {}
    for case in pairing.here.run.cases:
        portable = all(why.startswith(_PORTABLE) for why in _obstacles(pairing, case.case))
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
