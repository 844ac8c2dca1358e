"""The gate's decision: samples of two interleaved sides in, one verdict out. No process, no clock.

A comparison is a regression if the interval of its effect lies beyond both the calibrated threshold
and the minimum effect, and if its p-value is below α after Holm's correction over all gated
comparisons of all cases. Without any real change, a gate claims one, up or down, in any case, with
probability α at most; it fails (claims one upwards) with α / 2 at most. That follows from the
sides' random order alone. Threshold and minimum effect only make it rarer.

What decides, in this order:

    a count has grown             regression      exact, so no noise can excuse it
    head alone is wrong, crashes or runs out of memory      regression      exact as well
    the control case has moved    inconclusive    it cannot have: the times prove nothing
    a time has grown, or head alone exceeds the time limit  regression
    head breaks in significantly more rounds than the base  regression
    a case is broken on both sides, or none has numbers     infrastructure
    a case is broken on the base alone, or is too noisy     inconclusive
    otherwise                     pass

A process is broken that broke whenever it was repeated; see `breakage`. One that did not makes its
case flaky, which is told, and the rounds that are sound on both sides are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firstlight.compare.quantities import GATED, counts_of, decides, in_order, of_pair
from firstlight.compare.verdicts import (
    MINIMUM_EFFECT,
    RESOLUTION,
    Comparison,
    CountChange,
    Pair,
    Rule,
    change,
    compare,
    count_changes,
    may_be_slower,
)
from firstlight.errors import FirstlightError
from firstlight.gate.breakage import (
    Breakage,
    Flakiness,
    breakage,
    flakiness,
    flaky_sentence,
    is_flaky,
    uneven_rounds,
)
from firstlight.records import Sample
from firstlight.statistics.calibration import Thresholds
from firstlight.statistics.effects import holm, paired_effect
from firstlight.statistics.steady_state import spread

EXIT_CODES = {"pass": 0, "regression": 1, "infrastructure": 2, "inconclusive": 3}


class Look(NamedTuple):
    """After so many rounds the samples are judged, with this part of the error rate."""

    rounds: int
    alpha: float


#: When a gate looks. It stops at the first look that leaves nothing undecided, so that a quiet
#: machine is done soon and a noisy one is given time. The shares add up to 5 %: by the union bound
#: that is the rate over all looks. Twelve rounds are the fewest whose smallest p-value, 2 / 2^12,
#: survives Holm's correction over the forty comparisons of a suite at the first share.
LOOKS = (Look(12, 0.02), Look(24, 0.01), Look(48, 0.01), Look(96, 0.01))


#: A regression with a smaller p-value, after Holm's correction, ends a gate whatever else is
#: undecided. Looks claim with a larger one, which the rounds that follow may take back: stopping
#: at the first claim would still err no more often than stated, but three times as often as this.
BEYOND_DOUBT = 0.002


class GateError(FirstlightError):
    """The gate was asked for something that cannot be decided."""


@dataclass(frozen=True)
class GateReport:
    """What the gate found, and why."""

    verdict: str  # pass, regression, infrastructure or inconclusive
    exit_code: int
    reasons: tuple[str, ...]  # whole sentences, the decisive ones first
    comparisons: tuple[Comparison, ...]
    counts: tuple[CountChange, ...]  # all that are known; most of them `same`
    control: str | None
    control_moved: bool
    undecided: tuple[str, ...]  # cases that more rounds might decide
    broken: Mapping[str, str]  # cases without numbers on a side, and why
    rounds: int  # the fewest of any case
    alpha: float  # what this decision was allowed to spend
    minimum_effect: float
    resolution: float
    calibration: str  # where the thresholds come from, in words
    broken_by_head: tuple[str, ...] = ()  # those of `broken` that make it a regression
    flaky: tuple[Flakiness, ...] = ()  # cases of which a process broke, and then did not
    schema: str = "firstlight.gate-report"
    schema_version: int = 1

    @property
    def is_settled(self) -> bool:
        """Whether more rounds could change nothing that matters."""
        return not self.undecided or (self.verdict == "regression" and self._is_beyond_doubt())

    def _is_beyond_doubt(self) -> bool:
        exact = [c.verdict for c in self.counts if c.gated and c.case != self.control]
        found = [c for c in self.comparisons if c.gated and c.case != self.control]
        times = [c.p_adjusted for c in found if c.verdict == "regression"]
        times += [f.p_adjusted for f in self.flaky if f.verdict == "regression"]
        return bool("regression" in exact or self.broken_by_head) or any(
            p < BEYOND_DOUBT for p in times
        )


def decide(
    base: Sequence[Sample],
    head: Sequence[Sample],
    *,
    thresholds: Thresholds | None = None,
    control: str | None = None,
    alpha: float = 0.05,
    minimum_effect: float = MINIMUM_EFFECT,
    resolution: float = RESOLUTION,
    exact_counts: bool = True,
    gated: Collection[str] = GATED,
) -> GateReport:
    """The verdict over the samples of both sides, paired by case and index (the round).

    Checking and priming processes may be among them: they have no times, but if one failed, its
    case is broken. `gated` names the quantities that decide; the others are told beside them.
    """
    cases = list(dict.fromkeys(s.case for s in [*base, *head]))
    if control is not None and control not in cases:
        raise GateError(f"the control case {control!r} was not measured. Measured: {cases}.")
    sides = [_Side(side) for side in (base, head)]
    broken = {
        case: trouble
        for case in cases
        if (trouble := breakage(sides[0].of(case), sides[1].of(case), case == control))
    }
    usable = [case for case in cases if case not in broken]
    rule = Rule(alpha, minimum_effect, resolution, thresholds)
    pairs = [pair for case in usable for pair in _pairs(case, sides, gated)]
    # The control is no candidate for a regression: it is judged apart.
    own = [p for p in pairs if p.case != control]
    shaky = [c for c in usable if c != control and is_flaky(*(s.of(c) for s in sides))]
    uneven = [uneven_rounds(*(s.of(case) for s in sides)).p() for case in shaky]
    adjusted = holm([*uneven, *(p.effect.p for p in own if p.gated)])
    flaky = [
        flakiness(case, sides[0].of(case), sides[1].of(case), p, alpha)
        for case, p in zip(shaky, adjusted, strict=False)
    ]
    comparisons = compare(own, rule, beside=uneven)
    comparisons += compare([p for p in pairs if p.case == control], rule)
    counts = [
        c
        for case in (usable if exact_counts else ())
        for c in count_changes(case, *(s.counts(case) for s in sides))
    ]
    found: list[Comparison | CountChange] = [*comparisons, *counts]
    moved = _moved(found, control)
    verdict, reasons = _verdict(comparisons, counts, broken, flaky, control, moved)
    reasons += [f"{p.case}: {p.quantity} is {p.note}." for p in pairs if p.note]
    return GateReport(
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        reasons=tuple(reasons),
        comparisons=tuple(comparisons),
        counts=tuple(counts),
        control=control,
        control_moved=bool(moved),
        undecided=tuple(dict.fromkeys(_undecided_cases(comparisons, flaky, control))),
        broken={case: trouble.why for case, trouble in broken.items()},
        rounds=min((p.effect.n for p in pairs), default=0),
        alpha=alpha,
        minimum_effect=minimum_effect,
        resolution=resolution,
        calibration=_calibration(thresholds, minimum_effect),
        broken_by_head=tuple(case for case, trouble in broken.items() if trouble.regression),
        flaky=tuple(flaky),
    )


class _Side:
    """The samples of one side by case."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for sample in samples:
            self._samples.setdefault(sample.case, []).append(sample)

    def of(self, case: str) -> Sequence[Sample]:
        return self._samples.get(case, ())

    def timed(self, case: str) -> dict[int, Sample]:
        """Of each round the last attempt, where that is sound."""
        last = {s.index: s for s in self.of(case) if s.kind == "timed"}
        return {index: s for index, s in last.items() if s.status == "ok"}

    def counts(self, case: str) -> list[dict[str, int]]:
        return [counts_of(s) for s in self.timed(case).values()]


def _pairs(case: str, sides: Sequence[_Side], gated: Collection[str]) -> list[Pair]:
    """Every quantity over the rounds that have it on both sides."""
    samples = [side.timed(case) for side in sides]
    # An interrupted round has one side only.
    rounds = sorted(samples[0].keys() & samples[1].keys())
    both_sides = {i: of_pair(samples[0][i], samples[1][i]) for i in rounds}
    base, head = ({i: pair[n] for i, pair in both_sides.items()} for n in (0, 1))
    pairs = []
    for name in in_order({q: None for i in rounds for q in base[i].keys() & head[i].keys()}):
        both = [i for i in rounds if name in base[i] and name in head[i]]
        one, other = [base[i][name] for i in both], [head[i][name] for i in both]
        gate_it = decides(name, [[*base.values()], [*head.values()]], gated)
        apart = spread(one) if gate_it else None
        effect = paired_effect(one, other)
        pairs.append(Pair(case, name, gate_it and apart is None, one, other, effect, apart))
    return pairs


def _moved(
    found: Sequence[Comparison | CountChange], control: str | None
) -> list[Comparison | CountChange]:
    """What of the control case moved."""
    claimed = ("regression", "improvement")
    return [m for m in found if m.case == control and m.gated and m.verdict in claimed]


def control_sentences(report: GateReport) -> list[str]:
    """What a reader is told of a control case that moved."""
    return [
        _control_sentence(m) for m in _moved([*report.comparisons, *report.counts], report.control)
    ]


def _undecided(comparisons: Sequence[Comparison], control: str | None) -> list[Comparison]:
    """What may have become slower: a gate does not ask whether something is really faster."""
    return [
        c
        for c in comparisons
        if c.gated and c.verdict == "inconclusive" and c.case != control and may_be_slower(c)
    ]


def _undecided_cases(
    comparisons: Sequence[Comparison], flaky: Sequence[Flakiness], control: str | None
) -> list[str]:
    times = [c.case for c in _undecided(comparisons, control)]
    return times + [f.case for f in flaky if f.verdict == "inconclusive"]


def _verdict(
    comparisons: Sequence[Comparison],
    counts: Sequence[CountChange],
    broken: Mapping[str, Breakage],
    flaky: Sequence[Flakiness],
    control: str | None,
    moved: Sequence[Comparison | CountChange],
) -> tuple[str, list[str]]:
    """The verdict with its reasons; see the table at the top of this module."""
    own = [c for c in counts if c.gated and c.case != control]
    grown = [_count_sentence(c) for c in own if c.verdict == "regression"]
    slower = [
        _sentence(c)
        for c in comparisons
        if c.gated and c.case != control and c.verdict == "regression"
    ]
    undecided = [_sentence(c) for c in _undecided(comparisons, control)]
    slower += [flaky_sentence(f) for f in flaky if f.verdict == "regression"]
    undecided += [flaky_sentence(f) for f in flaky if f.verdict == "inconclusive"]
    grown += [f"{case}: {b.why}." for case, b in broken.items() if b.regression == "exact"]
    slower += [f"{case}: {b.why}." for case, b in broken.items() if b.regression == "slow"]
    trouble = [f"{case}: {b.why}." for case, b in broken.items() if b.regression is None]
    control_words = [_control_sentence(m) for m in moved]
    notes = [_count_sentence(c) for c in own if c.verdict == "improvement"]
    notes += [_sentence(c) for c in comparisons if c.gated and c.verdict == "improvement"]
    notes += [flaky_sentence(f) for f in flaky if f.verdict == "flaky"]
    every = [*grown, *control_words, *slower, *trouble, *undecided, *notes]
    if grown:
        return "regression", every
    if moved:
        return "inconclusive", [*control_words, *slower, *trouble, *undecided, *notes]
    if slower:
        return "regression", every
    candidates = [c for c in comparisons if c.case != control]
    if any(found.both for found in broken.values()) or not (candidates or broken):
        return "infrastructure", every or ["No case was measured on both sides."]
    if trouble or undecided:
        return "inconclusive", every
    if not any(c.gated for c in candidates):
        return "inconclusive", ["No time could be judged.", *every]
    return "pass", notes


def _sentence(found: Comparison) -> str:
    e = found.effect
    interval = f"{change(e.ratio)} [{change(e.low)}, {change(e.high)}] over {e.n} rounds"
    if found.verdict == "inconclusive":
        return f"{found.case}: {found.quantity} is {interval}: {found.reason}."
    word = "slower" if found.verdict == "regression" else "faster"
    return (
        f"{found.case}: {found.quantity} got {word}: {interval}, beyond {change(found.threshold)} "
        f"({found.threshold_source}), p = {found.p_adjusted:.2g}."
    )


def _control_sentence(moved: Comparison | CountChange) -> str:
    what = _count_sentence(moved) if isinstance(moved, CountChange) else _sentence(moved)
    return (
        "The control case moved, which the change cannot have caused, so the times prove nothing: "
        f"{what}"
    )


def _count_sentence(found: CountChange) -> str:
    return f"{found.case}: {found.reason}."


def _calibration(thresholds: Thresholds | None, minimum_effect: float) -> str:
    if thresholds is None:
        return (
            f"none: every change beyond {minimum_effect:.0%} that is significant counts. Two equal "
            "programs may differ by more here for a reason other than chance: measure it with "
            "`firstlight calibrate`"
        )
    runs = len({r.measured_at for r in thresholds.results})
    return f"{runs} A/A runs on {thresholds.machine_class}, α = {thresholds.alpha:g}"
