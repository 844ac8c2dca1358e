"""Compares published and repeated values: they agree, differ, or are undecided.

Two jobs on one machine differ by up to `DRIFT` for no reason. So a quantity *agrees* if the whole
interval of its change lies within that band, *differs* if it lies outside and is significant after
Holm's correction, and is *undecided* in between, or if other programs used half of the CPU or more
when either run began.

Absolute times of different kinds of machines are not comparable. Ratios of two cases of the same
run are: their values are paired by round, which cancels what the machine did to both.
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
    """Every repeated case with its verdict."""
    drafts = [_draft(pairing, case) for pairing in pairings for case in pairing.here.run.cases]
    busy = {
        pairing.folder
        for pairing in pairings
        for side in (pairing.published, pairing.here)
        if busy_share(state(side.run)) is not None
    }
    return conclude_cases(drafts, busy)


def conclude_cases(cases: Sequence[CaseReplication], busy: set[str]) -> list[CaseReplication]:
    """The cases with every verdict derived from their effects.

    `busy`: folders of runs whose times decide nothing because other programs used the CPU.
    """
    open_cases = [replace(c, deltas=tuple(_undecided(c, d) for d in c.deltas)) for c in cases]
    judged = iter(_with_verdicts([d for case in open_cases for d in case.deltas if d.judged]))
    found = []
    for case in open_cases:
        deltas = tuple(next(judged) if d.judged else d for d in case.deltas)
        failure = None if case.status_here == "ok" else case.failure_here or "no reason"
        verdict = _verdict(case, [d.verdict for d in deltas if d.judged], case.run in busy)
        found.append(replace(case, deltas=deltas, failure_here=failure, verdict=verdict))
    return found


def _undecided(case: CaseReplication, delta: Delta) -> Delta:
    """The quantity before any verdict; final if it is not judged."""
    two_speeds = case.comparable and delta.reason is Reason.TWO_SPEEDS and not delta.judged
    decides = delta.judged or delta.quantity in _ALWAYS_JUDGED
    return replace(
        delta,
        judged=case.comparable and decides and not two_speeds,
        p_adjusted=delta.effect.p,
        verdict="undecided" if case.comparable else "not comparable",
        reason=Reason.TWO_SPEEDS if two_speeds else None,
    )


def _verdict(case: CaseReplication, judged: Sequence[str], busy: bool) -> str:
    """The verdict on a case, from its status here and the verdicts on its judged quantities."""
    if case.status_here == "failed":  # a wrong result is a finding on any machine
        return "differs"
    if not case.comparable:
        return "not comparable"
    if busy or not judged:
        return "undecided"
    return next((v for v in ("differs", "undecided") if v in judged), "agrees")


def _with_verdicts(compared: Sequence[Compared]) -> list[Compared]:
    adjusted = holm([c.effect.p for c in compared])
    possible = can_be_significant([(c.published.n, c.here.n) for c in compared])
    found = []
    for comparison, p, can_be in zip(compared, adjusted, possible, strict=True):
        verdict, reason = judge(comparison.effect, p, can_be)
        found.append(replace(comparison, p_adjusted=p, verdict=verdict, reason=reason))
    return found


def can_be_significant(sizes: Sequence[tuple[int, int]]) -> list[bool]:
    """For each comparison, whether its (published, here) numbers of values allow significance."""
    smallest = holm([smallest_p(one, other, paired=False) for one, other in sizes])
    return [p < ALPHA for p in smallest]


def judge(effect: Effect, p_adjusted: float, can_be: bool = True) -> tuple[str, Reason | None]:
    """The verdict on one change, and its reason; `can_be` is that of `can_be_significant`."""
    far = 1 + DRIFT
    if effect.confidence < 0.95:
        return "undecided", Reason.NO_INTERVAL
    if effect.low >= 1 / far and effect.high <= far:
        return "agrees", None
    if effect.low > far or effect.high < 1 / far:
        if p_adjusted < ALPHA:
            return "differs", Reason.BEYOND_DRIFT
        return "undecided", Reason.NOT_SIGNIFICANT if can_be else Reason.NEVER_SIGNIFICANT
    return "undecided", Reason.PARTLY_BEYOND_DRIFT


def _draft(pairing: Pairing, case: CaseSummary) -> CaseReplication:
    """A case with its effects, before any verdict."""
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
    """What forbids comparing the times of a case."""
    one, other = pairing.published, pairing.here
    return differences(one.run, other.run, case, (one.samples, other.samples))


def _is_portable(found: Difference) -> bool:
    """Whether a difference affects all cases alike, so that ratios between cases remain valid."""
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
        deciding = case.comparable and is_decisive(name, [side])
        two_speeds = deciding and spread(published[name]) is not None
        yield Delta(
            quantity=name,
            judged=deciding and not two_speeds,
            published=median_estimate(published[name]),
            here=median_estimate(here[name]),
            effect=(effect := unpaired_effect(published[name], here[name])),
            p_adjusted=effect.p,
            verdict="undecided",
            reason=Reason.TWO_SPEEDS if two_speeds else None,
        )


def replicate_ratios(pairings: Sequence[Pairing]) -> list[RatioReplication]:
    """The ratio of every case to the plainest one of its workload (NumPy, if present)."""
    return conclude_ratios([ratio for pairing in pairings for ratio in _ratios(pairing)])


def conclude_ratios(ratios: Sequence[RatioReplication]) -> list[RatioReplication]:
    return [replace(ratio, order=_order(ratio)) for ratio in _with_verdicts(ratios)]


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
    """A sort key: NumPy first, then backends that compile nothing."""
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
    """(case, against) of every round in which both have a value."""
    one, other = (
        {s.index: sample_times(s).get(quantity) for s in _timed(samples, name)}
        for name in (case, against)
    )
    pairs = ((one[i], other.get(i)) for i in sorted(one))
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def ratio_effect(pairs: Sequence[tuple[float, float]]) -> Effect:
    """How many times as long the first case takes as the second."""
    return paired_effect([b for _, b in pairs], [a for a, _ in pairs])


def _order(ratio: RatioReplication) -> str:
    sides = [1 if e.low > 1 else -1 if e.high < 1 else 0 for e in (ratio.published, ratio.here)]
    if 0 in sides:
        return "undecided"
    return "same" if sides[0] == sides[1] else "reversed"
