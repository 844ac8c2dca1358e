"""Medians with exact, distribution-free intervals.

The interval is a pair of order statistics. For n independent values of any continuous distribution,
the number of values below the true median is Binomial(n, 1/2), so the interval from the k-th
smallest to the k-th largest contains it with probability 1 - 2 P(X < k). Nothing is resampled, and
nothing is assumed normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from firstlight.records import Estimate


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    if not values:
        raise ValueError("the median of nothing")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def coverage(n: int, k: int) -> float:
    """Probability that the k-th smallest and k-th largest of n values enclose the true median."""
    # Whole numbers to the end: 2^n is no floating-point number from n = 1024 on.
    return 1.0 - 2.0 * (sum(math.comb(n, i) for i in range(k)) / (1 << n))


def median_estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median and the narrowest symmetric interval that covers at least `confidence`.

    Fewer than six values cannot reach 95 %: then it is the whole range, and `confidence` in the
    result says how often that covers (n = 5: 93.75 %, n = 1: never).
    """
    ordered = sorted(values)
    n = len(ordered)
    k, below, every = 1, 1 + n, 1 << n  # below: of all 2^n ways, those with fewer than k + 1 below
    while 2 * (k + 1) <= n and 1.0 - 2.0 * (below / every) >= confidence:
        k += 1
        below += math.comb(n, k)
    return Estimate(
        median=median(ordered),
        low=ordered[k - 1],
        high=ordered[n - k],
        n=n,
        confidence=max(0.0, coverage(n, k)),
    )
