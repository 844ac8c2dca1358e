"""Medians with exact, distribution-free intervals.

The ends of an interval are order statistics. For n independent values of any continuous
distribution, the number of values below the true median is Binomial(n, 1/2), so the interval from
the k-th smallest to the k-th largest value contains it with probability 1 - 2 P(X < k). There is no
resampling, and no assumption of normality.
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
    """The largest k ≥ 1 whose interval reaches `confidence`, and its coverage."""
    # In integers, because 2.0**n overflows from n = 1024 on.
    every = 1 << n
    k, fewer, ways = 1, 1, n  # of `every` ways: fewer than k values below the median, exactly k
    while 2 * (k + 1) <= n and 1.0 - 2.0 * ((fewer + ways) / every) >= confidence:
        k += 1
        fewer += ways
        ways = ways * (n - k + 1) // k
    return k, max(0.0, 1.0 - 2.0 * (fewer / every))


def median_estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median and the narrowest symmetric interval with at least `confidence`.

    Fewer than six values cannot reach 95 %: the interval is then their range, and the result's
    `confidence` is the actual one (n = 5: 93.75 %, n = 1: 0).
    """
    ordered = sorted(values)
    n = len(ordered)
    k, covered = _narrowest(n, confidence)
    return Estimate(
        median=median(ordered), low=ordered[k - 1], high=ordered[n - k], n=n, confidence=covered
    )
