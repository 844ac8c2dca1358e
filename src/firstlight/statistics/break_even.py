"""Break-even: the number of calls after which a compiled case has cost less than an uncompiled one.

The total of n calls is `cold + (n - 1) * warm`: the first result in a fresh process, then n - 1
steady calls. The break-even is the smallest n at which the compiled case has the lower total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firstlight.records import BreakEven, Estimate
from firstlight.statistics.intervals import median_estimate


@dataclass(frozen=True)
class Costs:
    """Cold totals and warm levels of a case, in seconds, one value per process."""

    cold: Sequence[float]
    warm: Sequence[float]


def crossing(cold: float, warm: float, other_cold: float, other_warm: float) -> float:
    """The first call at which (cold, warm) has the lower total; infinity if never."""
    if cold < other_cold:
        return 1.0
    if warm >= other_warm:
        return math.inf
    return 1.0 + math.floor((cold - other_cold) / (other_warm - warm)) + 1.0


def break_even(compiled: Costs, others: Mapping[str, Costs]) -> BreakEven | None:
    """The break-even of `compiled` against all of `others`; None with too few processes.

    Its confidence is a union bound: the intervals of the medians miss with at most the sum of their
    own probabilities, however they depend on each other.
    """
    own, rivals = _medians(compiled), {name: _medians(other) for name, other in others.items()}
    miss = _miss_probability(own) + sum(map(_miss_probability, rivals.values()))
    if not others or miss > 0.5:  # too few processes for a useful interval
        return None
    found = {name: _crossings(own, rival) for name, rival in rivals.items()}
    against = max(found, key=lambda name: found[name][0])
    calls, low, high = (max(one[end] for one in found.values()) for end in range(3))
    own_miss = _miss_probability(own)
    return BreakEven(
        calls=_count_or_never(calls),
        low=_count_or_never(low),
        high=_count_or_never(high),
        confidence=max(0.0, 1 - miss),
        against=against,
        by_backend={
            name: {
                **dict(zip(("calls", "low", "high"), map(_count_or_never, ends), strict=True)),
                "confidence": max(0.0, 1 - own_miss - _miss_probability(rivals[name])),
            }
            for name, ends in found.items()
        },
    )


def _medians(costs: Costs) -> tuple[Estimate, Estimate]:
    """Cold and warm median; the four intervals of a case and one rival hold together with 95 %."""
    confidence = 1 - 0.05 / 4
    return median_estimate(costs.cold, confidence), median_estimate(costs.warm, confidence)


def _miss_probability(medians: tuple[Estimate, Estimate]) -> float:
    """An upper bound of the probability that either interval fails to contain its median."""
    return sum(1 - found.confidence for found in medians)


def _crossings(
    own: tuple[Estimate, Estimate], rival: tuple[Estimate, Estimate]
) -> tuple[float, float, float]:
    """(crossing, low, high) against one rival.

    The crossing increases with the compiled case's times and decreases with the rival's, so its
    extremes lie at the ends of the four intervals.
    """
    (c, w), (oc, ow) = own, rival
    return (
        crossing(c.median, w.median, oc.median, ow.median),
        crossing(c.low, w.low, oc.high, ow.high),
        crossing(c.high, w.high, oc.low, ow.low),
    )


def _count_or_never(calls: float) -> int | str:
    return "never" if math.isinf(calls) else int(calls)
