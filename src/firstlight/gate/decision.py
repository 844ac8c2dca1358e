"""The gate's decision: samples of two interleaved sides in, one verdict out. No process, no clock.

A comparison is a regression if the interval of its effect lies beyond both the calibrated threshold
and the minimum effect, and if its p-value is below α after Holm's correction over all gated
comparisons of all cases. Without any real change, a gate claims one, up or down, in any case, with
probability at most α; it fails (claims one upwards) with at most α / 2. That follows from the
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
case flaky, which is reported, and the rounds that are sound on both sides are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from firstlight.compare.quantities import (
    GATED,
    in_display_order,
    is_decisive,
    round_times,
    sample_counts,
)
from firstlight.compare.verdicts import (
    MINIMUM_EFFECT,
    RESOLUTION,
    Comparison,
    CountChange,
    QuantityPair,
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
#: A regression with a smaller p-value, after Holm's correction, ends a gate whatever else is
#: undecided. Looks claim with a larger one, which the rounds that follow may take back: stopping
#: at the first claim would still err no more often than stated, but three times as often as this.
BEYOND_DOUBT = 0.002
Both = tuple[Sequence[Sample], Sequence[Sample]]  # of one case: base, head


@dataclass(frozen=True)
class Look:
    """After so many rounds the samples are judged, with this part of the error rate."""

    rounds: int
    alpha: float


#: When a gate looks. It stops at the first look that leaves nothing undecided, so that a quiet
#: machine is done soon and a noisy one is given time. The shares add up to 5 %: by the union bound
#: that is the rate over all looks. Twelve rounds are the fewest whose smallest p-value, 2 / 2^12,
#: survives Holm's correction over the forty comparisons of a suite at the first share.
LOOKS = (Look(12, 0.02), Look(24, 0.01), Look(48, 0.01), Look(96, 0.01))


class GateError(FirstlightError):
    """The gate was asked for something that cannot be decided."""


@dataclass(frozen=True)
class Rules:
    """How the samples are judged, and after how many rounds."""

    looks: tuple[Look, ...] = LOOKS
    minimum_effect: float = MINIMUM_EFFECT
    resolution: float = RESOLUTION
    gated: Collection[str] = GATED  # the quantities that decide; the others are reported
    thresholds: Thresholds | None = None
    control: str | None = None
    exact_counts: bool = True
    #: Two versions of JAX write the same program in different equations: these are reported under
    #: another name, which is not gated.
    same_jax: bool = True
    fail_fast: bool = True  # stop at a regression beyond doubt, whatever else is undecided

    def judge(
        self, samples: Mapping[str, Sequence[Sample]], rounds: int, alpha: float
    ) -> GateReport:
        """The report over the first `rounds` rounds."""
        name = "equations" if self.same_jax else "equations of another JAX"
        base, head = (
            [s for s in for_decision(samples[side], name) if s.kind != "timed" or s.index < rounds]
            for side in ("base", "head")
        )
        return decide(base, head, self, alpha)


def for_decision(samples: Sequence[Sample], equations: str = "equations") -> list[Sample]:
    """The samples, the timed ones with the check's number of equations under the given name."""
    counted = {
        s.case: s.counts["equations"]
        for s in samples
        if s.kind == "check" and s.counts.get("equations") is not None
    }
    return [
        replace(s, counts={**s.counts, equations: counted[s.case]})
        if s.kind == "timed" and s.case in counted
        else s
        for s in samples
    ]


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
    def decisive(self) -> list[Comparison]:
        """The comparisons that the verdict rests on, without the control."""
        return [c for c in self.comparisons if c.gated and c.case != self.control]

    @property
    def gated_counts(self) -> list[CountChange]:
        return [c for c in self.counts if c.gated and c.case != self.control]

    @property
    def control_sentences(self) -> list[str]:
        """One per time or count of the control case that moved."""
        found: list[Comparison | CountChange] = [*self.comparisons, *self.counts]
        return [
            "The control case moved, which the change cannot have caused, so the times prove "
            f"nothing: {_sentence(m)}"
            for m in found
            if m.case == self.control and m.gated and m.verdict in ("regression", "improvement")
        ]

    @property
    def is_settled(self) -> bool:
        """Whether more rounds could change nothing that matters."""
        return not self.undecided or (self.verdict == "regression" and self._is_beyond_doubt())

    def _is_beyond_doubt(self) -> bool:
        exact = any(c.verdict == "regression" for c in self.gated_counts)
        found: list[Comparison | Flakiness] = [*self.decisive, *self.flaky]
        worse = [one.p_adjusted for one in found if one.verdict == "regression"]
        return bool(exact or self.broken_by_head) or any(p < BEYOND_DOUBT for p in worse)


def decide(
    base: Sequence[Sample], head: Sequence[Sample], rules: Rules | None = None, alpha: float = 0.05
) -> GateReport:
    """The verdict over the samples of both sides, paired by case and index (the round)."""
    rules = rules or Rules()
    cases = _by_case(base, head)
    control = rules.control
    if control is not None and control not in cases:
        raise GateError(f"the control case {control!r} was not measured. Measured: {[*cases]}.")
    broken = {
        case: trouble
        for case, both in cases.items()
        if (trouble := breakage(*both, case == control))
    }
    usable = {case: both for case, both in cases.items() if case not in broken}
    pairs = [pair for case, both in usable.items() for pair in _pairs(case, both, rules.gated)]
    # The control is no candidate for a regression: it is judged apart.
    own = [p for p in pairs if p.case != control]
    shaky = [case for case, both in usable.items() if case != control and is_flaky(*both)]
    uneven = [uneven_rounds(*usable[case]).p() for case in shaky]
    adjusted = holm([*uneven, *(p.effect.p for p in own if p.gated)])
    rule = Rule(alpha, rules.minimum_effect, rules.resolution, rules.thresholds)
    comparisons = compare(own, rule, other_p=uneven)
    comparisons += compare([p for p in pairs if p.case == control], rule)
    report = GateReport(
        verdict="pass",
        exit_code=0,
        reasons=(),
        comparisons=tuple(comparisons),
        counts=tuple(
            c
            for case, both in (usable.items() if rules.exact_counts else ())
            for c in count_changes(
                case, *([sample_counts(s) for s in _timed(side).values()] for side in both)
            )
        ),
        control=control,
        control_moved=False,
        undecided=(),
        broken={case: trouble.why for case, trouble in broken.items()},
        rounds=min((p.effect.n for p in pairs), default=0),
        alpha=alpha,
        minimum_effect=rules.minimum_effect,
        resolution=rules.resolution,
        calibration=_calibration(rules.thresholds, rules.minimum_effect),
        broken_by_head=tuple(case for case, trouble in broken.items() if trouble.regression),
        flaky=tuple(
            flakiness(case, *usable[case], p, alpha)
            for case, p in zip(shaky, adjusted, strict=False)
        ),
    )
    notes = [f"{p.case}: {p.quantity} is {p.note}." for p in pairs if p.note]
    return _with_verdict(report, broken, notes)


def _by_case(*sides: Sequence[Sample]) -> dict[str, Both]:
    found: dict[str, tuple[list[Sample], list[Sample]]] = {}
    for number, samples in enumerate(sides):
        for sample in samples:
            found.setdefault(sample.case, ([], []))[number].append(sample)
    return dict(found)


def _timed(samples: Sequence[Sample]) -> dict[int, Sample]:
    """Of each round the last attempt, where that is sound."""
    last = {s.index: s for s in samples if s.kind == "timed"}
    return {index: s for index, s in last.items() if s.status == "ok"}


def _pairs(case: str, both: Both, gated: Collection[str]) -> list[QuantityPair]:
    """Every quantity over the rounds that have it on both sides."""
    base, head = map(_timed, both)
    # An interrupted round has one side only.
    times = [round_times(base[i], head[i]) for i in sorted(base.keys() & head.keys())]
    sides = [[pair[number] for pair in times] for number in (0, 1)]
    pairs = []
    for name in in_display_order({q for one, other in times for q in one.keys() & other.keys()}):
        values = [(a[name], b[name]) for a, b in times if name in a and name in b]
        one, other = ([pair[number] for pair in values] for number in (0, 1))
        gate_it = is_decisive(name, sides, gated)
        apart = spread(one) if gate_it else None
        effect = paired_effect(one, other)
        pairs.append(QuantityPair(case, name, gate_it and apart is None, one, other, effect, apart))
    return pairs


def _with_verdict(
    report: GateReport, broken: Mapping[str, Breakage], notes: Sequence[str]
) -> GateReport:
    # A gate does not ask whether something is really faster, only what may have become slower.
    unsure = [c for c in report.decisive if c.verdict == "inconclusive" and may_be_slower(c)]
    shaky = [f.case for f in report.flaky if f.verdict == "inconclusive"]
    verdict, reasons = _verdict(report, broken, unsure)
    return replace(
        report,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        reasons=(*reasons, *notes),
        control_moved=bool(report.control_sentences),
        undecided=tuple(dict.fromkeys([*(c.case for c in unsure), *shaky])),
    )


def _verdict(
    report: GateReport, broken: Mapping[str, Breakage], unsure: Sequence[Comparison]
) -> tuple[str, list[str]]:
    """The verdict with its reasons; see the table at the top of this module."""

    def said(found: Sequence[Comparison | CountChange], verdict: str) -> list[str]:
        return [_sentence(one) for one in found if one.verdict == verdict]

    def flaky(verdict: str) -> list[str]:
        return [flaky_sentence(found) for found in report.flaky if found.verdict == verdict]

    def blamed(regression: str | None) -> list[str]:
        return [f"{case}: {b.why}." for case, b in broken.items() if b.regression == regression]

    times, counts, moved = report.decisive, report.gated_counts, report.control_sentences
    grown = said(counts, "regression") + blamed("exact")
    slower = said(times, "regression") + flaky("regression") + blamed("slow")
    trouble = blamed(None)
    undecided = [*map(_sentence, unsure), *flaky("inconclusive")]
    notes = said(counts, "improvement") + said(times, "improvement") + flaky("flaky")
    every = [*grown, *moved, *slower, *trouble, *undecided, *notes]
    if grown:
        return "regression", every
    if moved:
        return "inconclusive", every
    if slower:
        return "regression", every
    measured = any(c.case != report.control for c in report.comparisons)
    if any(found.both for found in broken.values()) or not (measured or broken):
        return "infrastructure", every or ["No case was measured on both sides."]
    if trouble or undecided:
        return "inconclusive", every
    if not times:
        return "inconclusive", ["No time could be judged.", *every]
    return "pass", notes


def _sentence(found: Comparison | CountChange) -> str:
    if isinstance(found, CountChange):
        return f"{found.case}: {found.reason}."
    e = found.effect
    interval = f"{change(e.ratio)} [{change(e.low)}, {change(e.high)}] over {e.n} rounds"
    if found.verdict == "inconclusive":
        return f"{found.case}: {found.quantity} is {interval}: {found.reason}."
    word = "slower" if found.verdict == "regression" else "faster"
    return (
        f"{found.case}: {found.quantity} got {word}: {interval}, beyond {change(found.threshold)} "
        f"({found.threshold_source}), p = {found.p_adjusted:.2g}."
    )


def _calibration(thresholds: Thresholds | None, minimum_effect: float) -> str:
    if thresholds is None:
        return (
            f"none: every change beyond {minimum_effect:.0%} that is significant counts. Two equal "
            "programs may differ by more here for a reason other than chance: measure it with "
            "`firstlight calibrate`"
        )
    runs = len({r.measured_at for r in thresholds.results})
    return f"{runs} A/A runs on {thresholds.machine_class}, α = {thresholds.alpha:g}"
