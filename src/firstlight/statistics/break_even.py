"""After how many calls does compiling pay? Total time against number of calls, and its crossing.

The total of n calls is `cold + (n - 1) * warm`: the first result in a fresh process, then n - 1
steady calls. The compiled case overtakes at the smallest n where its total is the lower one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.records import BreakEven, Estimate
from firstlight.statistics.intervals import median_estimate

NEVER = "never"


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
    if not others:
        return None
    own = _Medians.of(compiled)
    rivals = {name: _Medians.of(other) for name, other in others.items()}
    by_backend = {name: _against(own, rival) for name, rival in rivals.items()}
    against = max(by_backend, key=lambda name: _number(by_backend[name]["calls"]))
    missed = own.missed + sum(rival.missed for rival in rivals.values())
    if missed > 0.5:  # so few processes that the interval would say nothing
        return None
    return BreakEven(
        calls=by_backend[against]["calls"],
        low=_word(max(_number(one["low"]) for one in by_backend.values())),
        high=_word(max(_number(one["high"]) for one in by_backend.values())),
        confidence=max(0.0, 1 - missed),
        against=against,
        by_backend=by_backend,
    )


@dataclass(frozen=True)
class _Medians:
    cold: Estimate
    warm: Estimate

    @classmethod
    def of(cls, costs: Costs, confidence: float = 1 - 0.05 / 4) -> _Medians:
        # Four such intervals, those of a compiled case and one rival, leave 95 %.
        return cls(median_estimate(costs.cold, confidence), median_estimate(costs.warm, confidence))

    @property
    def missed(self) -> float:
        """How often at most one of the two intervals fails to contain its median."""
        return 2 - self.cold.confidence - self.warm.confidence


def _against(own: _Medians, rival: _Medians) -> dict[str, Any]:
    """One crossing with its interval.

    The crossing grows with the compiled case's times and falls with the rival's, so its extremes
    lie at the ends of the four medians' intervals.
    """
    c, w, oc, ow = own.cold, own.warm, rival.cold, rival.warm
    return {
        "calls": _word(crossing(c.median, w.median, oc.median, ow.median)),
        "low": _word(crossing(c.low, w.low, oc.high, ow.high)),
        "high": _word(crossing(c.high, w.high, oc.low, ow.low)),
        "confidence": max(0.0, 1 - own.missed - rival.missed),
    }


def _number(calls: int | str) -> float:
    return math.inf if isinstance(calls, str) else calls


def _word(calls: float) -> int | str:
    return NEVER if math.isinf(calls) else int(calls)
