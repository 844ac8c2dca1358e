"""The decision of a gate: one verdict from the samples of two sides. No process, no clock.

A comparison is a regression if the interval of its effect lies beyond both the calibrated threshold
and the minimum effect, and if its p-value is below α after Holm's correction over all gated
comparisons of all cases. Without a real change, a gate claims one, in either direction and in any
case, with probability at most α, and it fails (claims a slowdown) with at most α / 2. This follows
from the random order of the sides alone. Threshold and minimum effect only make it rarer.

What decides, in this order:

    a count has grown                                       regression (exact: noise is no excuse)
    head alone is wrong, crashes or runs out of memory      regression (exact)
    the control case has moved                              inconclusive: times prove nothing
    a time has grown, or head alone exceeds the time limit  regression
    head breaks in significantly more rounds than the base  regression
    a case is broken on both sides, or none has numbers     infrastructure
    a case is broken on the base alone, or is too noisy     inconclusive
    otherwise                                               pass

A process is broken if it breaks at every attempt (see `breakage`). A case with processes that break
only sometimes is flaky: this is reported, and the rounds that are sound on both sides are compared.
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
    one_sided_rounds,
)
from firstlight.records import Sample
from firstlight.statistics.calibration import Thresholds
from firstlight.statistics.effects import holm, paired_effect
from firstlight.statistics.steady_state import spread

EXIT_CODES = {"pass": 0, "regression": 1, "infrastructure": 2, "inconclusive": 3}
#: A regression with a p-value below this, after Holm's correction, ends a gate even if other cases
#: are undecided. Other claims of a look may be revised by later rounds: stopping at the first claim
#: would keep the stated error rate, but err three times as often as this.
BEYOND_DOUBT = 0.002
Both = tuple[Sequence[Sample], Sequence[Sample]]  # of one case: base, head


@dataclass(frozen=True)
class Look:
    """An interim analysis after so many rounds, with its part of the error rate."""

    rounds: int
    alpha: float


#: The looks of a gate. It stops at the first that leaves nothing undecided: soon on a quiet
#: machine, later on a noisy one. By the union bound the error rate of all looks is the sum of their
#: shares, 5 %. Twelve is the smallest number of rounds whose smallest p-value, 2 / 2^12, survives
#: Holm's correction over the forty comparisons of a suite at the first share.
LOOKS = (Look(12, 0.02), Look(24, 0.01), Look(48, 0.01), Look(96, 0.01))


class GateError(FirstlightError):
    """The request cannot lead to a decision."""


@dataclass(frozen=True)
class Rules:
    """How and when the samples are judged."""

    looks: tuple[Look, ...] = LOOKS
    minimum_effect: float = MINIMUM_EFFECT
    resolution: float = RESOLUTION
    gated: Collection[str] = GATED  # decisive quantities; the others are only reported
    thresholds: Thresholds | None = None
    control: str | None = None
    exact_counts: bool = True
    #: False: numbers of equations are reported under a name that is not gated, because two versions
    #: of JAX write the same program in different equations.
    same_jax: bool = True
    fail_fast: bool = True  # stop at a regression beyond doubt, even if other cases are undecided

    def judge(
        self, samples: Mapping[str, Sequence[Sample]], rounds: int, alpha: float
    ) -> GateReport:
        """The report on the first `rounds` rounds."""
        name = "equations" if self.same_jax else "equations of another JAX"
        base, head = (
            [s for s in for_decision(samples[side], name) if s.kind != "timed" or s.index < rounds]
            for side in ("base", "head")
        )
        return decide(base, head, self, alpha)


def for_decision(samples: Sequence[Sample], equations: str = "equations") -> list[Sample]:
    """The samples, with the check's number of equations added to the counts of the timed ones.

    `equations`: the name to add it under.
    """
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
    """The verdict of a gate, with all it is based on."""

    verdict: str  # pass, regression, infrastructure or inconclusive
    exit_code: int
    reasons: tuple[str, ...]  # sentences, the decisive ones first
    comparisons: tuple[Comparison, ...]
    counts: tuple[CountChange, ...]  # all known counts, changed or not
    control: str | None
    control_moved: bool
    undecided: tuple[str, ...]  # cases that more rounds might decide
    broken: Mapping[str, str]  # by case without numbers on a side: the reason
    rounds: int  # the minimum over cases
    alpha: float  # the share of the error rate for this look
    minimum_effect: float
    resolution: float
    calibration: str  # the source of the thresholds, for people
    broken_by_head: tuple[str, ...] = ()  # cases in `broken` that are regressions
    flaky: tuple[Flakiness, ...] = ()
    schema: str = "firstlight.gate-report"
    schema_version: int = 1

    @property
    def decisive(self) -> list[Comparison]:
        """The gated comparisons, without the control."""
        return [c for c in self.comparisons if c.gated and c.case != self.control]

    @property
    def gated_counts(self) -> list[CountChange]:
        return [c for c in self.counts if c.gated and c.case != self.control]

    @property
    def control_sentences(self) -> list[str]:
        """One sentence per time or count of the control case that moved."""
        found: list[Comparison | CountChange] = [*self.comparisons, *self.counts]
        return [
            "The control case moved, which the change cannot have caused, so the times prove "
            f"nothing: {_sentence(m)}"
            for m in found
            if m.case == self.control and m.gated and m.verdict in ("regression", "improvement")
        ]

    @property
    def is_settled(self) -> bool:
        """Whether more rounds cannot change the verdict: all is decided, or beyond doubt."""
        return not self.undecided or (self.verdict == "regression" and self._is_beyond_doubt())

    def _is_beyond_doubt(self) -> bool:
        exact = any(c.verdict == "regression" for c in self.gated_counts)
        found: list[Comparison | Flakiness] = [*self.decisive, *self.flaky]
        worse = [one.p_adjusted for one in found if one.verdict == "regression"]
        return bool(exact or self.broken_by_head) or any(p < BEYOND_DOUBT for p in worse)


def decide(
    base: Sequence[Sample], head: Sequence[Sample], rules: Rules | None = None, alpha: float = 0.05
) -> GateReport:
    """The verdict on the samples of both sides, paired by case and index (the round)."""
    rules = rules or Rules()
    cases = _by_case(base, head)
    control = rules.control
    if control is not None and control not in cases:
        raise GateError(f"the control case {control!r} was not measured. Measured: {[*cases]}.")
    broken = {
        case: found for case, both in cases.items() if (found := breakage(*both, case == control))
    }
    usable = {case: both for case, both in cases.items() if case not in broken}
    pairs = [pair for case, both in usable.items() for pair in _pairs(case, both, rules.gated)]
    # The control is judged separately: it is no candidate for a regression.
    own = [p for p in pairs if p.case != control]
    flaky = [case for case, both in usable.items() if case != control and is_flaky(*both)]
    flaky_p = [one_sided_rounds(*usable[case]).p() for case in flaky]
    adjusted = holm([*flaky_p, *(p.effect.p for p in own if p.gated)])
    rule = Rule(alpha, rules.minimum_effect, rules.resolution, rules.thresholds)
    comparisons = compare(own, rule, other_p=flaky_p)
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
        broken={case: found.why for case, found in broken.items()},
        rounds=min((p.effect.n for p in pairs), default=0),
        alpha=alpha,
        minimum_effect=rules.minimum_effect,
        resolution=rules.resolution,
        calibration=_calibration(rules.thresholds, rules.minimum_effect),
        broken_by_head=tuple(case for case, found in broken.items() if found.regression),
        flaky=tuple(
            flakiness(case, *usable[case], p, alpha)
            for case, p in zip(flaky, adjusted, strict=False)
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
    """By round: the last attempt, if it is sound."""
    last = {s.index: s for s in samples if s.kind == "timed"}
    return {index: s for index, s in last.items() if s.status == "ok"}


def _pairs(case: str, both: Both, gated: Collection[str]) -> list[QuantityPair]:
    """Each quantity with its values in the rounds that have it on both sides."""
    base, head = map(_timed, both)
    # An interrupted round may have one side only.
    times = [round_times(base[i], head[i]) for i in sorted(base.keys() & head.keys())]
    sides = [[pair[number] for pair in times] for number in (0, 1)]
    pairs = []
    for name in in_display_order({q for one, other in times for q in one.keys() & other.keys()}):
        values = [(a[name], b[name]) for a, b in times if name in a and name in b]
        one, other = ([pair[number] for pair in values] for number in (0, 1))
        decisive = is_decisive(name, sides, gated)
        apart = spread(one) if decisive else None
        effect = paired_effect(one, other)
        gate_it = decisive and apart is None
        pairs.append(QuantityPair(case, name, gate_it, one, other, effect, apart))
    return pairs


def _with_verdict(
    report: GateReport, broken: Mapping[str, Breakage], notes: Sequence[str]
) -> GateReport:
    # Doubts about an improvement do not matter to a gate, only those about a slowdown.
    unsure = [c for c in report.decisive if c.verdict == "inconclusive" and may_be_slower(c)]
    flaky = [f.case for f in report.flaky if f.verdict == "inconclusive"]
    verdict, reasons = _verdict(report, broken, unsure)
    return replace(
        report,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        reasons=(*reasons, *notes),
        control_moved=bool(report.control_sentences),
        undecided=tuple(dict.fromkeys([*(c.case for c in unsure), *flaky])),
    )


def _verdict(
    report: GateReport, broken: Mapping[str, Breakage], unsure: Sequence[Comparison]
) -> tuple[str, list[str]]:
    """The verdict with its reasons, by the table in the module docstring."""

    def sentences(found: Sequence[Comparison | CountChange], verdict: str) -> list[str]:
        return [_sentence(one) for one in found if one.verdict == verdict]

    def flaky(verdict: str) -> list[str]:
        return [flaky_sentence(found) for found in report.flaky if found.verdict == verdict]

    def blamed(regression: str | None) -> list[str]:
        return [f"{case}: {b.why}." for case, b in broken.items() if b.regression == regression]

    times, counts, moved = report.decisive, report.gated_counts, report.control_sentences
    exact = sentences(counts, "regression") + blamed("exact")
    slower = sentences(times, "regression") + flaky("regression") + blamed("slow")
    unblamed = blamed(None)
    undecided = [*map(_sentence, unsure), *flaky("inconclusive")]
    notes = sentences(counts, "improvement") + sentences(times, "improvement") + flaky("flaky")
    every = [*exact, *moved, *slower, *unblamed, *undecided, *notes]
    if exact:
        return "regression", every
    if moved:
        return "inconclusive", every
    if slower:
        return "regression", every
    measured = any(c.case != report.control for c in report.comparisons)
    if any(found.both for found in broken.values()) or not (measured or broken):
        return "infrastructure", every or ["No case was measured on both sides."]
    if unblamed or undecided:
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
            f"none: every significant change beyond {minimum_effect:.0%} counts. On this machine, "
            "two equal programs may differ by more for reasons other than chance: measure it with "
            "`firstlight calibrate`"
        )
    runs = len({r.measured_at for r in thresholds.results})
    return f"{runs} A/A runs on {thresholds.machine_class}, α = {thresholds.alpha:g}"
