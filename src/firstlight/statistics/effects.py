"""The effect between two sets of times: a ratio, its interval, and an exact p-value.

All methods use ranks: they assume no shape of the noise, and a single slow process does not decide.
Paired values (one of each side in every round) are compared with Wilcoxon's signed-rank test,
unpaired ones with the Mann-Whitney test. Estimate, interval and p-value belong together: the
interval contains the ratios that the test does not reject, and the estimate is its centre (Hodges
and Lehmann 1963).

Assumptions. Paired: the side that goes first is drawn at random in every round, so without an
effect each log-ratio has either sign with equal probability, whatever the machine does. Unpaired:
all values are independent, which is usually not true of two separate jobs. The intervals also
assume that an effect multiplies all times by the same factor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

#: Up to this number distributions are enumerated. Beyond, enumeration would take seconds, and the
#: normal approximation is off by at most a tenth of a small p-value (a test compares them).
_MAX_PAIRS = 200
_MAX_UNPAIRED = 100  # of both sides together
#: `smallest_p` counts at most this many values per side: a report may claim any number, and
#: binomial coefficients of millions take minutes.
_MAX_COUNTED = 1000


@dataclass(frozen=True)
class Effect:
    """The ratio of head's times to base's."""

    ratio: float
    low: float
    high: float
    confidence: float  # of the interval, as computed: 0.969 for six rounds, 0 for one
    p: float  # two-sided
    n: int  # rounds; if unpaired, the number of values of the smaller side
    paired: bool


def paired_effect(
    base: Sequence[float] | Values, head: Sequence[float] | Values, confidence: float = 0.95
) -> Effect:
    """The effect from paired values: value i of both sides was measured in round i.

    The ratio is the median of all pairwise means of the log-ratios (Walsh averages), the ends of
    the interval are two of these means, and p is over all 2^n sign flips of the log-ratios.
    """
    if len(base) != len(head):
        raise ValueError(f"{len(base)} base values, {len(head)} head values: not pairs")
    # A coarse clock gives equal ratios; rounding errors must not break the ties.
    differences = np.round(_logarithms(head) - _logarithms(base), 12)
    n = len(differences)
    first, second = np.triu_indices(n)
    walsh = np.sort((differences[first] + differences[second]) / 2)
    return _effect(walsh, _signed_rank_tail(n), confidence, _signed_rank_p(differences), n, True)


def unpaired_effect(
    base: Sequence[float] | Values, head: Sequence[float] | Values, confidence: float = 0.95
) -> Effect:
    """The effect from two separate sets of values, by the Mann-Whitney test."""
    one, other = _logarithms(base), _logarithms(head)
    between = np.sort((other[:, None] - one[None, :]).ravel())
    tail = _rank_sum_tail(len(other), len(one))
    n = min(len(one), len(other))
    return _effect(between, tail, confidence, _rank_sum_p(one, other), n, False)


def smallest_p(base: int, head: int, paired: bool) -> float:
    """The p-value if every value of one side is larger than every value of the other."""
    base, head = (min(n, _MAX_COUNTED) for n in (base, head))
    return 2 / (2**base if paired else math.comb(base + head, base))


def fewest_values(comparisons: int, alpha: float, paired: bool) -> int:
    """The number of values per side needed for a p-value that survives Holm's correction."""
    return next(n for n in itertools.count(1) if comparisons * smallest_p(n, n, paired) < alpha)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given (Holm 1979).

    Rejecting those below α is wrong for any of them with probability at most α, however they depend
    on each other.
    """
    adjusted = [1.0] * len(p_values)
    worst = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def _logarithms(values: Sequence[float] | Values) -> Values:
    array = np.asarray(values, dtype=float)
    if not len(array) or not np.all(np.isfinite(array)) or np.any(array <= 0):
        raise ValueError("an effect needs positive, finite values on both sides")
    return np.asarray(np.log(array))


def _effect(
    candidates: Values, tail: Values, confidence: float, p: float, n: int, paired: bool
) -> Effect:
    """The effect whose interval is from the k-th smallest to the k-th largest of `candidates`.

    `tail[c]` is the probability that the test statistic is at most c; the true ratio lies below the
    k-th smallest candidate with probability `tail[k - 1]`.
    """
    allowed = (1 - confidence) / 2 * (1 + 1e-9)
    k = max(1, int(np.searchsorted(tail, allowed, side="right")))
    middle, low, high = np.exp([np.median(candidates), candidates[k - 1], candidates[-k]]).tolist()
    covered = max(0.0, 1.0 - 2.0 * float(tail[k - 1]))
    return Effect(middle, low, high, covered, p, n, paired)


def _two_sided(probabilities: Values, value: int) -> float:
    ends = (probabilities[: value + 1].sum(), probabilities[value:].sum())
    return min(1.0, 2 * float(min(ends)))


def _normal_two_sided(distance: float, deviation: float, step: float) -> float:
    """The p-value with the continuity correction of half a step of the statistic."""
    if deviation == 0:
        return 1.0
    return min(1.0, 2 * NormalDist().cdf(-max(0.0, abs(distance) - step / 2) / deviation))


def _doubled_ranks(values: Values) -> NDArray[np.int64]:
    """Twice the mean rank of every value: an integer also for ties."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((2 * last - counts + 1)[inverse], dtype=np.int64)


# --- pairs: the sum of the ranks with a positive sign ---------------------------------------------


def _signed_rank_p(differences: Values) -> float:
    ranks = _doubled_ranks(np.abs(differences))
    free = ranks[differences != 0]  # a zero counts in the ranking, but has no sign to flip
    positive = int(ranks[differences > 0].sum())
    if len(free) > _MAX_PAIRS:
        deviation = math.sqrt(float((free.astype(float) ** 2).sum())) / 2
        return _normal_two_sided(positive - free.sum() / 2, deviation, 2)
    return _two_sided(_sums_of_flips(tuple(int(r) for r in np.sort(free))), positive)


@lru_cache(maxsize=256)
def _sums_of_flips(ranks: tuple[int, ...]) -> Values:
    """The probability of every sum of ranks if each rank is included with probability 1/2."""
    probabilities = np.zeros(sum(ranks) + 1)
    probabilities[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(probabilities)
        shifted[rank:] = probabilities[: len(probabilities) - rank]
        probabilities = (probabilities + shifted) / 2
    return probabilities


@lru_cache(maxsize=256)
def _signed_rank_tail(n: int) -> Values:
    """P(number of positive Walsh averages ≤ c) for c from 0 to half of their number."""
    maximum = n * (n + 1) // 2
    if n <= _MAX_PAIRS:
        probabilities = _sums_of_flips(tuple(range(1, n + 1)))
        return np.asarray(np.cumsum(probabilities)[: maximum // 2 + 1])
    deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return _normal_tail(maximum, deviation)


# --- unpaired: the sum of the ranks of one side ---------------------------------------------------


def _rank_sum_p(one: Values, other: Values) -> float:
    ranks = _doubled_ranks(np.concatenate([other, one]))
    observed = int(ranks[: len(other)].sum())
    if len(ranks) > _MAX_UNPAIRED:
        # The variance of a sum drawn without replacement; correct for ties.
        share = len(other) * len(one) / (len(ranks) * (len(ranks) - 1))
        deviation = math.sqrt(share * float(((ranks - ranks.mean()) ** 2).sum()))
        return _normal_two_sided(observed - len(other) * ranks.mean(), deviation, 2)
    ordered = tuple(int(r) for r in np.sort(ranks))
    return _two_sided(_sums_of_draws(ordered, len(other)), observed)


@lru_cache(maxsize=64)
def _sums_of_draws(ranks: tuple[int, ...], drawn: int) -> Values:
    """The probability of every sum of `drawn` ranks, all subsets being equally likely."""
    # chosen[j, s]: the share of the j-subsets of the ranks seen so far that add up to s.
    chosen = np.zeros((drawn + 1, sum(ranks[-drawn:]) + 1))
    chosen[0, 0] = 1.0
    for seen, rank in enumerate(ranks):
        for j in range(min(drawn, seen + 1), 0, -1):
            taken = j / (seen + 1)  # the share of the j-subsets that contain the newest rank
            chosen[j] *= 1 - taken
            chosen[j, rank:] += taken * chosen[j - 1, : chosen.shape[1] - rank]
    return np.asarray(chosen[drawn])


@lru_cache(maxsize=64)
def _rank_sum_tail(drawn: int, left: int) -> Values:
    """P(U ≤ c) for c from 0 to half of its maximum."""
    maximum = drawn * left
    if drawn + left <= _MAX_UNPAIRED:
        ranks = tuple(range(1, drawn + left + 1))
        probabilities = _sums_of_draws(ranks, drawn)[drawn * (drawn + 1) // 2 :]
        return np.asarray(np.cumsum(probabilities)[: maximum // 2 + 1])
    return _normal_tail(maximum, math.sqrt(maximum * (drawn + left + 1) / 12))


def _normal_tail(maximum: int, deviation: float) -> Values:
    normal = NormalDist(maximum / 2, deviation)
    return np.array([normal.cdf(c + 0.5) for c in range(maximum // 2 + 1)])
