"""Groups of comparable cases, and the case with the least total time for each number of calls.

A warm cache needs an earlier process, so its cases are not compared with those of an empty one:
there is one group per cache policy. A backend without a cache is part of all groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firstlight.present.quantities import has_interval
from firstlight.records import CaseSummary, Estimate
from firstlight.report.admission import Workload, quotable
from firstlight.report.amortisation import Curve, curves

_ORDER = ("none", "cold", "warm", "shared", "frozen", "tiered")


@dataclass(frozen=True)
class PolicyGroup:
    """The cases of one workload under one cache policy."""

    policy: str
    entrants: tuple[CaseSummary, ...]  # may be compared
    excluded: tuple[CaseSummary, ...]  # may not

    @property
    def decided(self) -> bool:
        """Whether a case with this policy is among the entrants."""
        return any(case.cache == self.policy for case in self.entrants)


@dataclass(frozen=True)
class CheapestSpan:
    """From `first_call` calls on, this case has the least total time."""

    case: CaseSummary
    first_call: float
    low: float | None = None  # interval of `first_call`, if recorded; inf means "never"
    high: float | None = None


def policy_groups(workload: Workload) -> tuple[PolicyGroup, ...]:
    """One group per cache policy, without those that are a proper subset of another."""
    policies: dict[str, set[str]] = {}
    for case in workload.cases:
        policies.setdefault(case.backend, set()).add(case.cache)
    used = {case.cache for case in workload.cases}
    fields = {
        policy: [
            case
            for case in workload.cases
            if case.cache == policy or policies[case.backend] == {case.cache} == {"none"}
        ]
        for policy in [p for p in _ORDER if p in used] + sorted(used - set(_ORDER))
    }
    names = {policy: {case.case for case in field} for policy, field in fields.items()}
    return tuple(
        PolicyGroup(
            policy,
            tuple(c for c in field if quotable(c)),
            tuple(c for c in field if not quotable(c)),
        )
        for policy, field in fields.items()
        if not any(names[policy] < other for other in names.values())
    )


def leaders(entrants: Sequence[tuple[CaseSummary, Estimate]]) -> list[tuple[CaseSummary, Estimate]]:
    """The case with the lowest median, then those whose intervals overlap with it."""
    ordered = sorted(entrants, key=lambda e: e[1].median)
    return ordered[:1] + [
        (case, estimate)
        for case, estimate in ordered[1:]
        if has_interval(ordered[0][1]) and has_interval(estimate)
        if estimate.low <= ordered[0][1].high
    ]


def cheapest_spans(group: PolicyGroup) -> list[CheapestSpan]:
    """The lower envelope of cold + (calls − 1) · warm, from the medians.

    Crossings that are recorded as break-evens have their interval.
    """
    found = curves(group.entrants)
    # Without the warm time of a case there is no ranking.
    if not found or len(found) < len(group.entrants):
        return []
    current = min(found, key=lambda c: (c.cold.median, c.warm.median))
    envelope = [CheapestSpan(current.case, 1.0)]
    while True:
        rivals = [(_crossing(current, c), c) for c in found if c.warm.median < current.warm.median]
        if not rivals:
            return envelope
        at, following = min(rivals, key=lambda r: (r[0], r[1].warm.median))
        envelope.append(_span(following.case, current.case, max(at, envelope[-1].first_call)))
        current = following


def _crossing(slow: Curve, fast: Curve) -> float:
    """The first whole number of calls at which `fast` has cost less."""
    saved = slow.warm.median - fast.warm.median
    return max(1.0, math.floor(1 + (fast.cold.median - slow.cold.median) / saved) + 1.0)


def _span(winner: CaseSummary, loser: CaseSummary, at: float) -> CheapestSpan:
    even = winner.break_even_calls
    recorded = even.by_backend.get(loser.backend, {}) if even else {}
    if isinstance(recorded.get("calls"), int):
        low, high = (_bound(recorded.get(end)) for end in ("low", "high"))
        return CheapestSpan(winner, float(recorded["calls"]), low, high)
    return CheapestSpan(winner, at)


def _bound(value: object) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    return math.inf if value == "never" else None
