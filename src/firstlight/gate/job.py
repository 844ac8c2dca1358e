"""One gate from prepared sides to its report: measure, look, and go on while it is undecided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from firstlight.compare.differences import case_differences, data_differences, joined
from firstlight.compare.quantities import GATED
from firstlight.compare.verdicts import MINIMUM_EFFECT, RESOLUTION
from firstlight.gate.decision import EXIT_CODES, LOOKS, GateError, GateReport, Look, decide
from firstlight.gate.measuring import SIDES, Pair, Watch, for_decision
from firstlight.records import Run, Sample
from firstlight.statistics.calibration import Thresholds

Samples = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True)
class Rules:
    """How the samples are judged, and after how many rounds."""

    looks: tuple[Look, ...] = LOOKS
    minimum_effect: float = MINIMUM_EFFECT
    resolution: float = RESOLUTION
    gated: tuple[str, ...] = GATED
    thresholds: Thresholds | None = None
    control: str | None = None
    exact_counts: bool = True
    #: Two versions of JAX write the same program in different equations: told under another name,
    #: which is not gated.
    same_jax: bool = True
    #: Stop at a regression beyond doubt, whatever else is undecided.
    fail_fast: bool = True

    def judge(self, samples: Samples, rounds: int, alpha: float) -> GateReport:
        """The report over the first `rounds` rounds."""
        name = "equations" if self.same_jax else "equations of another JAX"
        base, head = (
            [s for s in for_decision(samples[side], name) if s.kind != "timed" or s.index < rounds]
            for side in SIDES
        )
        return decide(
            base,
            head,
            thresholds=self.thresholds,
            control=self.control,
            alpha=alpha,
            minimum_effect=self.minimum_effect,
            resolution=self.resolution,
            exact_counts=self.exact_counts,
            gated=self.gated,
        )


def looks_for(alpha: float, rounds: int | None) -> tuple[Look, ...]:
    """The looks of a gate with error rate `alpha`: one after `rounds`, or the usual ones."""
    if rounds is not None:
        return (Look(rounds, alpha),)
    total = sum(look.alpha for look in LOOKS)
    return tuple(Look(look.rounds, alpha * look.alpha / total) for look in LOOKS)


def measure_and_judge(
    pair: Pair,
    rules: Rules,
    samples: Callable[[], Samples],
    watch: Watch,
    deadline: float | None = None,
    left_out: Collection[str] = (),
) -> GateReport:
    """Measure to the first look that settles it (`GateReport.is_settled`), or until the time is up.

    When the time ends between two looks, the rounds that are complete are judged with the share of
    the next look: how many there are depends on the clock, not on what they show.
    """
    done = 0
    report: GateReport | None = None
    for look in rules.looks:
        reached = pair.measure(done, look.rounds, watch, deadline)
        if report is None or reached > done:
            taken = {n: [s for s in v if s.case not in left_out] for n, v in samples().items()}
            report = rules.judge(taken, reached, look.alpha)
        if not report.undecided or reached < look.rounds:
            break
        if rules.fail_fast and report.is_settled and look != rules.looks[-1]:
            return _stopped_early(report)
        done = reached
    if report is None:
        raise ValueError("a gate needs at least one look")
    return report


def _stopped_early(report: GateReport) -> GateReport:
    """What a reader must know of a gate that stopped with cases undecided."""
    told = (
        f"The gate stopped after {report.rounds} rounds: the regression is beyond doubt. Still "
        f"undecided: {', '.join(report.undecided)} (--keep-going measures on)."
    )
    return replace(report, reasons=(*report.reasons, told))


def not_comparable(
    runs: Mapping[str, Run], samples: Samples, cases: Sequence[str]
) -> dict[str, str]:
    """By case: how its two sides differ in data or protocol, as the check processes saw them.

    A case that failed, or did not get far enough to have a protocol, is broken, which the report
    says itself.
    """
    found = {}
    for case in cases:
        both = [s for run in runs.values() for s in run.cases if s.case == case]
        if all(s.protocol and s.status in ("ok", "incomplete") for s in both):
            differences = case_differences(runs["base"], runs["head"], case)
            differences += data_differences(samples["base"], samples["head"], case)
            if differences:
                found[case] = joined(differences)
    return found


def require_some(incomparable: Mapping[str, str], cases: Sequence[str]) -> None:
    """Refuse a gate whose every case is another thing on the other side."""
    if cases and all(case in incomparable for case in cases):
        why = "; ".join(f"{case}: {incomparable[case]}" for case in cases)
        raise GateError(f"no case can be compared. {why}")


def with_notes(
    report: GateReport,
    incomparable: Mapping[str, str],
    notes: Sequence[str] = (),
    unimportable: Mapping[str, str] | None = None,
) -> GateReport:
    """The report with what could not be compared: it proves nothing, so the gate cannot pass.

    `unimportable` is why the benchmark file of a side cannot be imported: said first, because it is
    why every case of that side is broken.
    """
    sentences = [f"{case}: not compared, because {why}." for case, why in incomparable.items()]
    first = [
        f"The benchmark file of {side} cannot be imported: {why}."
        for side, why in (unimportable or {}).items()
    ]
    if not sentences and not notes and not first:
        return report
    verdict = "inconclusive" if report.verdict == "pass" and sentences else report.verdict
    return replace(
        report,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        reasons=(*first, *report.reasons, *sentences, *notes),
    )
