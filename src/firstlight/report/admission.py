"""Removes numbers that may not be shown, before anything is drawn.

A case that failed, was skipped or has no protocol keeps its name, status, reason and stderr, and
loses all numbers. Figures and tables get only what this module admits, so none of them needs to
check the rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from firstlight.present.palette import Mark, marks, name_with_swatch
from firstlight.present.quantities import known
from firstlight.records import CaseSummary, Estimate, Run, Sample

#: Statuses without numbers: the result is wrong, or there is none.
WITHOUT_NUMBERS = frozenset({"failed", "skipped"})
E = TypeVar("E", bound=Estimate)


@dataclass(frozen=True)
class Workload:
    """Cases with the same work and data, and their timed processes."""

    name: str
    size: str
    cases: tuple[CaseSummary, ...]
    samples: Mapping[str, tuple[Sample, ...]]  # by case, in run order
    marks: Mapping[str, Mark]  # by backend, the same on the whole page

    @property
    def label(self) -> str:
        """'mlp_train [small]'."""
        return f"{self.name} [{self.size}]" if self.size else self.name

    @property
    def anchor(self) -> str:
        """The fragment identifier: letters, digits and dashes."""
        raw = f"{self.name}-{self.size}"
        return "w-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in raw)

    def name_of(self, case: CaseSummary) -> str:
        """The label of a case in bold after its marker, as markup."""
        return name_with_swatch(self.marks[case.backend], label(case), hollow(case))


def by_workload(cases: Iterable[CaseSummary]) -> dict[tuple[str, str], list[CaseSummary]]:
    """Cases by workload and size, in run order."""
    groups: dict[tuple[str, str], list[CaseSummary]] = {}
    for case in cases:
        groups.setdefault((case.workload, case.size), []).append(case)
    return groups


def admit(run: Run, samples: Sequence[Sample]) -> tuple[Workload, ...]:
    """The workloads of a run in run order, without numbers that may not be shown."""
    cases = [_admissible(case) for case in run.cases]
    look = marks(list(dict.fromkeys(case.backend for case in cases)))
    timed: dict[str, list[Sample]] = {case.case: [] for case in cases if _may_have_numbers(case)}
    for sample in samples:
        good = sample.kind == "timed" and sample.status not in WITHOUT_NUMBERS
        if good and sample.case in timed:
            timed[sample.case].append(sample)
    ordered = {name: tuple(sorted(own, key=lambda s: s.order)) for name, own in timed.items()}
    return tuple(
        Workload(name, size, tuple(group), {c.case: ordered.get(c.case, ()) for c in group}, look)
        for (name, size), group in by_workload(cases).items()
    )


def _may_have_numbers(case: CaseSummary) -> bool:
    return case.protocol is not None and case.status not in WITHOUT_NUMBERS


def _admissible(case: CaseSummary) -> CaseSummary:
    """The case with only those of its numbers that may be shown."""
    if not _may_have_numbers(case):
        return case.without_numbers()
    rest = case.unattributed_seconds
    return dataclasses.replace(
        case,
        cold_seconds=_finite(case.cold_seconds),
        warm_call_seconds=_finite(case.warm_call_seconds),
        throughput_calls_per_second=_finite(case.throughput_calls_per_second),
        phases_seconds={k: v if known(v) else None for k, v in case.phases_seconds.items()},
        unattributed_seconds=rest if known(rest) else None,
    )


def _finite(estimate: E | None) -> E | None:
    return estimate if estimate is not None and known(estimate.median) else None


def has_number(case: CaseSummary) -> bool:
    """Whether there is a time to first result."""
    return case.cold_seconds is not None


def quotable(case: CaseSummary) -> bool:
    """Whether the case may take part in a comparison."""
    return flag(case) is None and has_number(case)


def label(case: CaseSummary) -> str:
    """The case within its workload: 'jax-jit', or 'jax-jit/warm' if it uses a cache."""
    return f"{case.backend}/{case.cache}" if hollow(case) else case.backend


def hollow(case: CaseSummary) -> bool:
    """Whether its marker is an outline: it uses a compile cache."""
    return case.cache not in ("", "none")


def flag(case: CaseSummary) -> str | None:
    """The warning to show with the case everywhere; None if it is valid."""
    if case.status != "ok":
        return case.status
    return "no protocol" if case.protocol is None else None


def badge(case: CaseSummary) -> str:
    """The flag as markup, after a space; empty for a valid case."""
    found = flag(case)
    return f' <span class="badge">{escape(found)}</span>' if found else ""


def flag_reason(case: CaseSummary) -> str:
    """The reason for a flag, as a sentence without its full stop."""
    if case.reason:
        return case.reason.rstrip(".")
    if case.protocol is None:
        return "no protocol was recorded, so no number is shown"
    return f"{case.processes_ok} of {case.processes_planned} processes gave a result"
