"""Runs a gate on prepared sides: measure, judge, and continue while a case is undecided."""

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


def run_gate(
    gate: Gate, directory: GateDirectory, watch: Watch, deadline: float | None = None
) -> GateReport:
    """Measure and decide; afterwards all but explanations is in `directory`."""
    pairs = gate.selection.cases
    names = [pair.id for pair in pairs]
    with PairedMeasurement(
        pairs, gate.settings, gate.sides, directory.keepers(), directory.samples()
    ) as measurement:
        measurement.prepare(watch)
        require_own_code(gate.sides, measurement.modules)
        checked = {side: last_attempts(v) for side, v in directory.samples().items()}
        different = not_comparable(directory.runs(checked), checked, names)
        require_comparable(different, [name for name in names if name != gate.rules.control])
        measurement.leave_out(different)
        report = measure_and_judge(
            measurement, gate.rules, directory.samples, watch, deadline, different
        )
    directory.publish_sides(os.getloadavg() if hasattr(os, "getloadavg") else None)
    report = with_notes(
        report,
        {**gate.selection.incomparable, **different},
        [f"{name}: new in head, nothing to compare with." for name in gate.selection.new],
        gate.selection.unimportable,
    )
    write_json(directory.path / "gate.json", report)
    write_text(directory.path / "gate.md", markdown(report, gate.side_descriptions))
    return report


def measure_and_judge(
    measurement: PairedMeasurement,
    rules: Rules,
    samples: Callable[[], Samples],
    watch: Watch,
    deadline: float | None = None,
    left_out: Collection[str] = (),
) -> GateReport:
    """Measure until a look settles the verdict (`GateReport.is_settled`) or the deadline.

    If the deadline falls between two looks, the complete rounds are judged with the share of the
    next look. This is valid, because their number depends on the clock, not on the data.
    """
    done = 0
    report: GateReport | None = None
    for look in rules.looks:
        reached = measurement.measure(done, look.rounds, watch, deadline)
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
    """By case: how the two sides differ in data or protocol, according to the check processes.

    Cases that failed or have no protocol are not included: the report lists them as broken.
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


def require_comparable(incomparable: Mapping[str, str], cases: Sequence[str]) -> None:
    """Refuse a gate without any comparable case."""
    if cases and all(case in incomparable for case in cases):
        why = "; ".join(f"{case}: {incomparable[case]}" for case in cases)
        raise GateError(f"no case can be compared. {why}")


def with_notes(
    report: GateReport,
    incomparable: Mapping[str, str],
    notes: Sequence[str] = (),
    unimportable: Mapping[str, str] | None = None,
) -> GateReport:
    """The report with reasons for the cases that were not compared; with such cases it cannot pass.

    `unimportable`: by side, why its benchmark file cannot be imported. It comes first, because it
    is the reason why every case of that side is broken.
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
