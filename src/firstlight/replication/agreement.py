"""Published and repeated values compared: agrees, differs, or undecided.

Two jobs on one machine come out apart by up to `DRIFT` for no reason. So a quantity *agrees* if the
whole interval of its change lies within that band, *differs* if it lies outside of it and is
significant after Holm's correction, and is *undecided* in between, or if other programs took half
of the CPU or more when either run began.

On another kind of machine absolute times say nothing. The ratio of two cases of the same run does:
its values are paired by round, so what the machine did to both at a time is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from firstlight.compare.conditions import busy_share
from firstlight.compare.differences import Difference, Kind, differences
from firstlight.compare.environments import state
from firstlight.compare.quantities import GATED, in_display_order, is_decisive, sample_times
from firstlight.compare.runs import DRIFT, Measured
from firstlight.records import PHASES, CaseSummary, Sample
from firstlight.replication.report import ALPHA, CaseReplication, Delta, RatioReplication, Reason
from firstlight.statistics.effects import Effect, holm, paired_effect, smallest_p, unpaired_effect
from firstlight.statistics.intervals import median_estimate
from firstlight.statistics.steady_state import spread

_RATIOS = ("cold_seconds", "warm_call_seconds")
#: A phase decides only where it is a large part of the first result.
_ALWAYS_JUDGED = {*GATED} - {*PHASES}
Compared = TypeVar("Compared", Delta, RatioReplication)


@dataclass(frozen=True)
class Pairing:
    """A published run and its repetition."""

    folder: str
    published: Measured
    here: Measured


def replicate_cases(pairings: Sequence[Pairing]) -> list[CaseReplication]:
    """Every case that was measured again, with the verdict on it."""
    drafts = [_draft(pairing, case) for pairing in pairings for case in pairing.here.run.cases]
    busy = {
        pairing.folder
        for pairing in pairings
        for side in (pairing.published, pairing.here)
        if busy_share(state(side.run)) is not None
    }
    return conclude_cases(drafts, busy)


def conclude_cases(cases: Sequence[CaseReplication], busy: set[str]) -> list[CaseReplication]:
    """The cases with every verdict as it follows from their effects.

    `busy`: folders of runs whose times decide nothing, because of other programs.
    """
    asked = [replace(case, deltas=tuple(_asked(case, d) for d in case.deltas)) for case in cases]
    judged = iter(_judged([d for case in asked for d in case.deltas if d.judged]))
    found = []
    for case in asked:
        deltas = tuple(next(judged) if d.judged else d for d in case.deltas)
        failure = None if case.status_here == "ok" else case.failure_here or "no reason"
        verdict = _verdict(case, [d.verdict for d in deltas if d.judged], case.run in busy)
        found.append(replace(case, deltas=deltas, failure_here=failure, verdict=verdict))
    return found


def _asked(case: CaseReplication, delta: Delta) -> Delta:
    """The quantity before it is judged, or as it stays if it is not."""
    apart = case.comparable and delta.reason is Reason.TWO_SPEEDS and not delta.judged
    asked = delta.judged or delta.quantity in _ALWAYS_JUDGED
    return replace(
        delta,
        judged=case.comparable and asked and not apart,
        p_adjusted=delta.effect.p,
        verdict="undecided" if case.comparable else "not comparable",
        reason=Reason.TWO_SPEEDS if apart else None,
    )


def _verdict(case: CaseReplication, judged: Sequence[str], busy: bool) -> str:
    """The verdict on a case, from its status here and those on its judged quantities."""
    if case.status_here == "failed":  # a wrong result is a finding on any machine
        return "differs"
    if not case.comparable:
        return "not comparable"
    if busy or not judged:
        return "undecided"
    return next((v for v in ("differs", "undecided") if v in judged), "agrees")


def _judged(compared: Sequence[Compared]) -> list[Compared]:
    adjusted = holm([one.effect.p for one in compared])
    many = too_many([(one.published.n, one.here.n) for one in compared])
    found = []
    for one, p, number in zip(compared, adjusted, many, strict=True):
        verdict, reason = judge(one.effect, p, number)
        found.append(replace(one, p_adjusted=p, verdict=verdict, reason=reason))
    return found


def too_many(sizes: Sequence[tuple[int, int]]) -> list[int | None]:
    """For each comparison how many there are, where so few values could never be significant."""
    smallest = holm([smallest_p(one, other, paired=False) for one, other in sizes])
    return [len(sizes) if p >= ALPHA else None for p in smallest]


def judge(effect: Effect, p_adjusted: float, many: int | None = None) -> tuple[str, Reason | None]:
    """The verdict on one change, and what it rests on; `many` is that of `too_many`."""
    far = 1 + DRIFT
    if effect.confidence < 0.95:
        return "undecided", Reason.NO_INTERVAL
    if effect.low >= 1 / far and effect.high <= far:
        return "agrees", None
    if effect.low > far or effect.high < 1 / far:
        if p_adjusted < ALPHA:
            return "differs", Reason.BEYOND_DRIFT
        return "undecided", Reason.NOT_SIGNIFICANT if many is None else Reason.NEVER_SIGNIFICANT
    return "undecided", Reason.PARTLY_BEYOND_DRIFT


def _draft(pairing: Pairing, case: CaseSummary) -> CaseReplication:
    """A case with its effects, before anything is concluded from them."""
    published = next(c for c in pairing.published.run.cases if c.case == case.case)
    draft = CaseReplication(
        run=pairing.folder,
        case=case.case,
        verdict="undecided",
        differences=tuple(_differences(pairing, case.case)),
        correctness_published=published.correctness,
        correctness_here=case.correctness,
        status_here=case.status,
        failure_here=case.reason,
        deltas=(),
    )
    return replace(draft, deltas=tuple(_deltas(pairing, draft)))


def _differences(pairing: Pairing, case: str) -> list[Difference]:
    """What forbids comparing the times of a case; nothing if they can be."""
    one, other = pairing.published, pairing.here
    return differences(one.run, other.run, case, (one.samples, other.samples))


def _is_portable(found: Difference) -> bool:
    """Whether it changes the times of all cases alike, so that ratios between cases remain."""
    return found.kind in (Kind.MACHINE, Kind.ENVIRONMENT) or (found.kind, found.field) in (
        (Kind.PROTOCOL, "threads"),
        (Kind.SETTING, "affinity"),
    )


def _timed(samples: Sequence[Sample], case: str) -> list[Sample]:
    return [s for s in samples if s.case == case and s.kind == "timed"]


def measured_values(samples: Sequence[Sample], case: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for sample in _timed(samples, case):
        for name, value in sample_times(sample).items():
            found.setdefault(name, []).append(value)
    return found


def _deltas(pairing: Pairing, case: CaseReplication) -> Iterator[Delta]:
    runs = (pairing.published, pairing.here)
    published, here = (measured_values(m.samples, case.case) for m in runs)
    side = [sample_times(s) for s in _timed(pairing.published.samples, case.case)]
    for name in in_display_order(dict.fromkeys(published.keys() & here.keys())):
        asked = case.comparable and is_decisive(name, [side])
        apart = asked and spread(published[name]) is not None
        yield Delta(
            quantity=name,
            judged=asked and not apart,
            published=median_estimate(published[name]),
            here=median_estimate(here[name]),
            effect=(effect := unpaired_effect(published[name], here[name])),
            p_adjusted=effect.p,
            verdict="undecided",
            reason=Reason.TWO_SPEEDS if apart else None,
        )


def replicate_ratios(pairings: Sequence[Pairing]) -> list[RatioReplication]:
    """Every case over the plainest one of its workload: numpy, where there is one."""
    return conclude_ratios([ratio for pairing in pairings for ratio in _ratios(pairing)])


def conclude_ratios(ratios: Sequence[RatioReplication]) -> list[RatioReplication]:
    return [replace(ratio, order=_order(ratio)) for ratio in _judged(ratios)]


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
    runs = (pairing.published, pairing.here)
    sides = [paired_values(m.samples, case, against, quantity) for m in runs]
    if not all(sides):
        return
    own = [ratio_effect(side) for side in sides]
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
        order="undecided",
        verdict="undecided",
    )


def paired_values(
    samples: Sequence[Sample], case: str, against: str, quantity: str
) -> list[tuple[float, float]]:
    """(case, other) of every round in which both have a value."""
    one, other = (
        {s.index: sample_times(s).get(quantity) for s in _timed(samples, name)}
        for name in (case, against)
    )
    pairs = ((one[i], other.get(i)) for i in sorted(one))
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def ratio_effect(pairs: Sequence[tuple[float, float]]) -> Effect:
    """How many times as long one case takes as the other."""
    return paired_effect([b for _, b in pairs], [a for a, _ in pairs])


def _order(ratio: RatioReplication) -> str:
    sides = [1 if e.low > 1 else -1 if e.high < 1 else 0 for e in (ratio.published, ratio.here)]
    if 0 in sides:
        return "undecided"
    return "same" if sides[0] == sides[1] else "reversed"
