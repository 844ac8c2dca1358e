"""Comparison of runs from separate jobs: `firstlight compare`.

Separate jobs are not paired, and they differ (neighbours, clocks, memory layout) by more than
processes within one. So the run is the unit, if both sides have enough runs for a change to be
significant after Holm's correction. Otherwise processes are compared. Their interval does not
include drift between jobs, so a change then counts only beyond `DRIFT`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from firstlight.compare.conditions import busy_share, disturbance_warning, machine_class
from firstlight.compare.differences import (
    case_differences,
    data_differences,
    data_hashes,
    in_words,
    machine_differences,
)
from firstlight.compare.environments import changed, versions
from firstlight.compare.quantities import in_display_order, is_decisive, sample_counts, sample_times
from firstlight.compare.verdicts import (
    MINIMUM_EFFECT,
    RESOLUTION,
    Comparison,
    CountChange,
    QuantityPair,
    Rule,
    compare,
    count_changes,
)
from firstlight.errors import FirstlightError
from firstlight.records import Run, Sample
from firstlight.statistics.effects import smallest_p, unpaired_effect
from firstlight.statistics.intervals import median
from firstlight.statistics.steady_state import spread

#: By how much two jobs on one machine may differ without a cause, as a share. Measured between
#: identical builds on shared machines: 12 % (php-judy 104), 15 % (mui-public 1712).
DRIFT = 0.15
ALPHA = 0.05  # for all claims of a report together


class NotComparableError(FirstlightError):
    """The runs differ in more than the program, so their times cannot be compared."""


@dataclass(frozen=True)
class Measured:
    """A run with its samples, under the name that the user gave."""

    name: str
    run: Run
    samples: Sequence[Sample]


@dataclass(frozen=True)
class RunsReport:
    """The changes from the runs of the base to those of the head."""

    base: tuple[str, ...]
    head: tuple[str, ...]
    machine_class: str
    unit: str  # run or process
    comparisons: tuple[Comparison, ...]
    counts: tuple[CountChange, ...]
    left_out: Mapping[str, str]  # cases without a comparison: the reason
    overridden: tuple[str, ...]  # differences that forbid comparing, overridden with --anyway
    changed: tuple[str, ...]  # versions and commits, the possible causes
    warnings: tuple[str, ...]
    alpha: float
    minimum_effect: float
    resolution: float
    drift: float | None  # a change must exceed it; null if the intervals include drift
    disturbed: Mapping[str, float]  # by run: the share of the CPU used by other programs
    schema: str = "firstlight.comparison"
    schema_version: int = 1


def compare_runs(
    base: Sequence[Measured],
    head: Sequence[Measured],
    *,
    anyway: bool = False,
    minimum_effect: float = MINIMUM_EFFECT,
) -> RunsReport:
    """The effect per case and quantity; refuses runs that are not comparable, unless `anyway`."""
    _require_once(base)
    _require_once(head)
    every = [*base, *head]
    overridden = _machines(base, head, anyway)
    left_out: dict[str, str] = {}
    compared: list[str] = []
    for case in dict.fromkeys(c.case for m in every for c in m.run.cases):
        problems = _case_problems(base, head, case)
        if problems and not (anyway and _all_have_numbers(every, case)):
            left_out[case] = "; ".join(problems)
        else:
            overridden += [f"{case}: {problem}" for problem in problems]
            compared.append(case)
    pairs = [pair for case in compared for pair in _pairs(case, base, head, "process")]
    if not pairs:
        helps = any(_all_have_numbers(every, case) for case in left_out)
        raise NotComparableError(_refusal("No case is comparable", left_out.items(), helps))
    decisive = sum(pair.gated for pair in pairs)
    unit = "run" if enough_runs(len(base), len(head), decisive) else "process"
    drift = None if unit == "run" else max(DRIFT, minimum_effect)
    if unit == "run":
        pairs = [pair for case in compared for pair in _pairs(case, base, head, "run")]
    disturbed = {m.name: share for m in every if (share := busy_share(m.run.host)) is not None}
    rule = Rule(ALPHA, drift or minimum_effect, max(RESOLUTION, drift or 0.0))
    warnings = [disturbance_warning(share, name) for name, share in disturbed.items()]
    return RunsReport(
        base=tuple(m.name for m in base),
        head=tuple(m.name for m in head),
        machine_class=machine_class(base[0].run.host),
        unit=unit,
        comparisons=tuple(
            _worded(c, drift, minimum_effect, bool(disturbed)) for c in compare(pairs, rule)
        ),
        counts=tuple(
            change
            for case in compared
            for change in count_changes(
                case,
                *(
                    [sample_counts(s) for m in side for s in _timed(m, case)]
                    for side in (base, head)
                ),
            )
        ),
        left_out=left_out,
        overridden=tuple(overridden),
        changed=tuple(changed(*(versions(m.run.host, m.run.harness) for m in (base[0], head[0])))),
        warnings=(*warnings, *_warnings(base, head, drift, runs_needed(decisive))),
        alpha=ALPHA,
        minimum_effect=minimum_effect,
        resolution=RESOLUTION,
        drift=drift,
        disturbed=disturbed,
    )


def enough_runs(base: int, head: int, comparisons: int = 1) -> bool:
    """Whether a rank test of so many runs can give a 95 % interval and a significant change.

    The smallest p-value is 2 / C(base + head, base); Holm's correction multiplies it by the number
    of decisive comparisons.
    """
    smallest = smallest_p(base, head, paired=False)
    return smallest <= 0.05 and max(1, comparisons) * smallest < ALPHA


def runs_needed(comparisons: int) -> int:
    """The smallest number of runs per side that is enough."""
    return next(n for n in range(1, 1000) if enough_runs(n, n, comparisons))


def _require_once(side: Sequence[Measured]) -> None:
    """Refuse a run that is given twice on one side: it adds no evidence."""
    names: dict[str, str] = {}
    for m in side:
        if m.run.id in names:
            raise NotComparableError(
                f"{m.name} is the same run as {names[m.run.id]} ({m.run.id}), and a run counts "
                "once per side. Leave one of them out."
            )
        names[m.run.id] = m.name


def _machines(base: Sequence[Measured], head: Sequence[Measured], anyway: bool) -> list[str]:
    """Differences between the first run and the others that concern all cases."""
    first = base[0]
    found = [
        (m.name, in_words(difference))
        for m in [*base[1:], *head]
        for difference in machine_differences(first.run, m.run)
    ]
    if found and not anyway:
        raise NotComparableError(_refusal(f"Not comparable with {first.name}", found))
    return [f"{name}: {problem}" for name, problem in found]


def _refusal(what: str, problems: Iterable[tuple[str, str]], anyway_helps: bool = True) -> str:
    lines = "".join(f"\n  {name}: {problem}" for name, problem in problems)
    advice = (
        "This difference would be measured too. To compare regardless: --anyway"
        if anyway_helps
        else "No case has times in all of these runs, so nothing can be compared."
    )
    return f"{what}:{lines}\n{advice}"


def _case_problems(base: Sequence[Measured], head: Sequence[Measured], case: str) -> list[str]:
    every = [*base, *head]
    # A run without hashes of its data does not prevent comparing those of the others.
    first = next((m for m in every if data_hashes(m.samples, case) is not None), every[0])
    problems = [
        in_words(difference) + (f" ({m.name})" if len(every) > 2 else "")
        for m in every[1:]
        for difference in [
            *case_differences(every[0].run, m.run, case),
            *data_differences(first.samples, m.samples, case),
        ]
    ]
    return problems + [
        f"{summary.status} in {m.name}"
        for m in every
        for summary in m.run.cases
        if summary.case == case and summary.status != "ok"
    ]


def _all_have_numbers(every: Sequence[Measured], case: str) -> bool:
    """Whether the case is `ok` with times in every run; --anyway cannot override that."""
    return all(
        [c.status for c in m.run.cases if c.case == case] == ["ok"] and _timed(m, case)
        for m in every
    )


def _timed(measured: Measured, case: str) -> list[Sample]:
    return [s for s in measured.samples if s.case == case and s.kind == "timed"]


def _pairs(
    case: str, base: Sequence[Measured], head: Sequence[Measured], unit: str
) -> list[QuantityPair]:
    sides = [[[sample_times(s) for s in _timed(m, case)] for m in side] for side in (base, head)]
    processes = [[values for run in side for values in run] for side in sides]
    present = [{q for values in side for q in values} for side in processes]
    pairs = []
    for name in in_display_order(present[0] & present[1]):
        one, other = (_values(side, name, unit) for side in sides)
        gated = is_decisive(name, processes)
        apart = spread(_values(sides[0], name, "process")) if gated else None
        effect = unpaired_effect(one, other)
        pairs.append(QuantityPair(case, name, gated and apart is None, one, other, effect, apart))
    return pairs


def _values(side: Sequence[Sequence[Mapping[str, float]]], name: str, unit: str) -> list[float]:
    """One value per process, or per run the median of its processes."""
    by_run = [[values[name] for values in run if name in values] for run in side]
    if unit == "run":
        return [median(values) for values in by_run if values]
    return [value for values in by_run for value in values]


def _worded(
    found: Comparison, drift: float | None, minimum_effect: float, disturbed: bool
) -> Comparison:
    """The comparison as inconclusive, if drift or a busy machine could explain its result."""
    if drift is not None:
        found = replace(found, threshold_source="drift between two jobs")
    if disturbed:  # as in a replication
        reason = "the machine was busy with other programs"
        return replace(found, verdict="inconclusive", reason=reason)
    low, high = found.effect.low, found.effect.high
    real = low > 1 + minimum_effect or high < 1 / (1 + minimum_effect)
    if drift is not None and found.verdict == "same" and real:
        reason = f"the jobs differ, but drift between jobs may be {drift:.0%}"
        return replace(found, verdict="inconclusive", reason=reason)
    return found


def _warnings(
    base: Sequence[Measured], head: Sequence[Measured], drift: float | None, needed: int
) -> list[str]:
    found = []
    if drift is not None:
        runs = "one run per side" if len(base) == len(head) == 1 else "so few runs"
        found.append(
            f"{runs} cannot show how far two jobs drift apart, so only changes beyond {drift:.0%} "
            f"count. Measure both sides in one job (`firstlight gate`), or {needed} runs per side"
        )
    names = {m.run.id for m in base} & {m.run.id for m in head}
    if names:
        found.append(f"the same run is on both sides: {', '.join(sorted(names))}")
    return found
