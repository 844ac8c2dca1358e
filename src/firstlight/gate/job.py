"""One gate from prepared sides to its report: measure, look, and go on while it is undecided."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from firstlight.compare.differences import case_differences, data_differences, in_words
from firstlight.gate.breakage import last_attempts
from firstlight.gate.decision import EXIT_CODES, GateError, GateReport, Rules
from firstlight.gate.directory import GateDirectory
from firstlight.gate.measuring import PairedMeasurement, Watch
from firstlight.gate.outputs import markdown
from firstlight.gate.own_code import require_own_code
from firstlight.gate.planning import Gate
from firstlight.records import Run, Sample, write_json, write_text

Samples = Mapping[str, Sequence[Sample]]


def carry_out(
    gate: Gate, directory: GateDirectory, watch: Watch, deadline: float | None = None
) -> GateReport:
    """Measure and decide; everything but explanations is on disk afterwards."""
    pairs = gate.selection.cases
    names = [pair.id for pair in pairs]
    with PairedMeasurement(
        pairs, gate.settings, gate.sides, directory.keepers(), directory.samples()
    ) as pair:
        pair.prepare(watch)
        require_own_code(gate.sides, pair.modules)
        checked = {side: last_attempts(v) for side, v in directory.samples().items()}
        different = not_comparable(directory.runs(checked), checked, names)
        require_some(different, [name for name in names if name != gate.rules.control])
        pair.leave_out(different)
        report = measure_and_judge(pair, gate.rules, directory.samples, watch, deadline, different)
    directory.publish_sides(os.getloadavg() if hasattr(os, "getloadavg") else None)
    report = with_notes(
        report,
        {**gate.selection.incomparable, **different},
        [f"{name}: new in head, nothing to compare with." for name in gate.selection.new],
        gate.selection.unimportable,
    )
    write_json(directory.path / "gate.json", report)
    write_text(directory.path / "gate.md", markdown(report, gate.side_words))
    return report


def measure_and_judge(
    pair: PairedMeasurement,
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
        if not report.undecided or reached < look.rounds or look == rules.looks[-1]:
            return report
        if rules.fail_fast and report.is_settled:
            stopped = (
                f"The gate stopped after {report.rounds} rounds: the regression is beyond doubt. "
                f"Still undecided: {', '.join(report.undecided)} (--keep-going measures on)."
            )
            return replace(report, reasons=(*report.reasons, stopped))
        done = reached
    raise ValueError("a gate needs at least one look")


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
                found[case] = "; ".join(map(in_words, differences))
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
    first = [
        f"The benchmark file of {side} cannot be imported: {why}."
        for side, why in (unimportable or {}).items()
    ]
    left_out = [f"{case}: not compared, because {why}." for case, why in incomparable.items()]
    verdict = "inconclusive" if report.verdict == "pass" and left_out else report.verdict
    return replace(
        report,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        reasons=(*first, *report.reasons, *left_out, *notes),
    )
