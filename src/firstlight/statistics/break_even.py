"""After how many calls does compiling pay? Total time against number of calls, and its crossing.

The total of n calls is `cold + (n - 1) * warm`: the first result in a fresh process, then n - 1
steady calls. The compiled case overtakes at the smallest n where its total is the lower one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.records import BreakEven
from firstlight.statistics.intervals import median_estimate

NEVER = "never"


@dataclass(frozen=True)
class Costs:
    """Cold totals and warm medians of a case, in seconds, one value a process."""

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
    """From which call on `compiled` has cost less than every one of `others`."""
    by_backend = {name: _against(compiled, other) for name, other in others.items()}
    if not by_backend:
        return None
    against = max(by_backend, key=lambda name: _number(by_backend[name]["calls"]))
    hardest = by_backend[against]
    return BreakEven(
        calls=hardest["calls"],
        low=_word(max(_number(one["low"]) for one in by_backend.values())),
        high=_word(max(_number(one["high"]) for one in by_backend.values())),
        confidence=min(one["confidence"] for one in by_backend.values()),
        against=against,
        by_backend=by_backend,
    )


def _against(compiled: Costs, other: Costs, confidence: float = 0.95) -> dict[str, Any]:
    """One crossing with its interval.

    The crossing grows with the compiled case's times and falls with the other's, so its extremes
    lie at the ends of the four medians' intervals. Each of those misses with probability 1 - c; by
    the union bound the crossing's interval misses with at most their sum, whatever depends on what.
    """
    each = 1 - (1 - confidence) / 4
    c, w = median_estimate(compiled.cold, each), median_estimate(compiled.warm, each)
    oc, ow = median_estimate(other.cold, each), median_estimate(other.warm, each)
    missed = sum(1 - e.confidence for e in (c, w, oc, ow))
    return {
        "calls": _word(crossing(c.median, w.median, oc.median, ow.median)),
        "low": _word(crossing(c.low, w.low, oc.high, ow.high)),
        "high": _word(crossing(c.high, w.high, oc.low, ow.low)),
        "confidence": max(0.0, 1 - missed),
    }


def _number(calls: int | str) -> float:
    return math.inf if isinstance(calls, str) else calls


def _word(calls: float) -> int | str:
    return NEVER if math.isinf(calls) else int(calls)
