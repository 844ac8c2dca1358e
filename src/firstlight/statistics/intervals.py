"""Medians with exact, distribution-free intervals.

The interval is a pair of order statistics. For n independent values of any continuous distribution,
the number of values below the true median is Binomial(n, 1/2), so the interval from the k-th
smallest to the k-th largest contains it with probability 1 - 2 P(X < k). Nothing is resampled, and
nothing is assumed normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from firstlight.records import Estimate


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    if not values:
        raise ValueError("the median of no values")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@lru_cache(maxsize=256)
def _narrowest(n: int, confidence: float) -> tuple[int, float]:
    """The largest k, 1 at least, whose interval covers `confidence`, and how often it does."""
    # Whole numbers to the end: 2^n is no floating-point number from n = 1024 on.
    every = 1 << n
    k, fewer, ways = 1, 1, n  # of `every`: with fewer than k values below the median, and with k
    while 2 * (k + 1) <= n and 1.0 - 2.0 * ((fewer + ways) / every) >= confidence:
        k += 1
        fewer += ways
        ways = ways * (n - k + 1) // k
    return k, max(0.0, 1.0 - 2.0 * (fewer / every))


def median_estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median and the narrowest symmetric interval that covers at least `confidence`.

    Fewer than six values cannot reach 95 %: then it is the whole range, and `confidence` in the
    result says how often that covers (n = 5: 93.75 %, n = 1: never).
    """
    ordered = sorted(values)
    n = len(ordered)
    k, covered = _narrowest(n, confidence)
    return Estimate(
        median=median(ordered), low=ordered[k - 1], high=ordered[n - k], n=n, confidence=covered
    )
