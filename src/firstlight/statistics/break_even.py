"""After how many calls does compiling pay? Total time against number of calls, and its crossing.

The total of n calls is `cold + (n - 1) * warm`: the first result in a fresh process, then n - 1
steady calls. The compiled case overtakes at the smallest n where its total is the lower one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firstlight.records import BreakEven, Estimate
from firstlight.statistics.intervals import median_estimate


@dataclass(frozen=True)
class Costs:
    """Cold totals and warm medians of a case, in seconds, one value per process."""

    cold: Sequence[float]
    warm: Sequence[float]


def crossing(cold: float, warm: float, other_cold: float, other_warm: float) -> float:
    """Calls from which (cold, warm) has cost less than the other one; infinity for never."""
    if cold < other_cold:
        return 1.0
    if warm >= other_warm:
        return math.inf
    return 1.0 + math.floor((cold - other_cold) / (other_warm - warm)) + 1.0


def break_even(compiled: Costs, others: Mapping[str, Costs]) -> BreakEven | None:
    """From which call on `compiled` has cost less than every one of `others`.

    Each median's interval misses with its own small probability. By the union bound, whatever
    depends on what, a statement that uses several of them misses with at most the sum.
    """
    own, rivals = _medians(compiled), {name: _medians(other) for name, other in others.items()}
    missed = _missed(own) + sum(map(_missed, rivals.values()))
    if not others or missed > 0.5:  # so few processes that the interval would say nothing
        return None
    found = {name: _crossings(own, rival) for name, rival in rivals.items()}
    against = max(found, key=lambda name: found[name][0])
    calls, low, high = (max(one[end] for one in found.values()) for end in range(3))
    return BreakEven(
        calls=_word(calls),
        low=_word(low),
        high=_word(high),
        confidence=max(0.0, 1 - missed),
        against=against,
        by_backend={
            name: {
                **dict(zip(("calls", "low", "high"), map(_word, ends), strict=True)),
                "confidence": max(0.0, 1 - _missed(own) - _missed(rivals[name])),
            }
            for name, ends in found.items()
        },
    )


def _medians(costs: Costs) -> tuple[Estimate, Estimate]:
    """Cold and warm; four such intervals, of a compiled case and one rival, leave 95 %."""
    confidence = 1 - 0.05 / 4
    return median_estimate(costs.cold, confidence), median_estimate(costs.warm, confidence)


def _missed(medians: tuple[Estimate, Estimate]) -> float:
    """How often at most one of the two intervals fails to contain its median."""
    return sum(1 - found.confidence for found in medians)


def _crossings(
    own: tuple[Estimate, Estimate], rival: tuple[Estimate, Estimate]
) -> tuple[float, float, float]:
    """One crossing with its interval.

    The crossing grows with the compiled case's times and falls with the rival's, so its extremes
    lie at the ends of the four medians' intervals.
    """
    (c, w), (oc, ow) = own, rival
    return (
        crossing(c.median, w.median, oc.median, ow.median),
        crossing(c.low, w.low, oc.high, ow.high),
        crossing(c.high, w.high, oc.low, ow.low),
    )


def _word(calls: float) -> int | str:
    return "never" if math.isinf(calls) else int(calls)
