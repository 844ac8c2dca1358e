"""Two sets of numbers to one effect: a ratio, an interval for it, and an exact p-value.

Everything here is by ranks: nothing is assumed of the shape of the noise, and one slow process does
not decide. Paired values (one of each side in every round) go through the sign-flip test of signed
ranks, unpaired ones through Mann-Whitney's. Estimate, interval and p-value come from the same test:
the interval holds those ratios that the test does not reject, and the estimate is its middle
(Hodges and Lehmann 1963).

What the exactness rests on. Paired: which side goes first is drawn by lot in every round, so that
without an effect every log-ratio might as well have the other sign, whatever the machine does in
the meantime. Unpaired: the values of both sides are independent, which those of two separate jobs
are not as a rule. The intervals assume, in addition, that an effect multiplies all times alike.
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

#: Up to here distributions are enumerated. Beyond, the normal approximation is off by a tenth of
#: a small p-value at most (a test compares them), and enumerating would take seconds.
_MAX_PAIRS = 200
_MAX_UNPAIRED = 100  # of both sides together
#: Values of a side from which on its smallest p-value is small enough for anything. A report may
#: claim any number, and binomial coefficients of millions take minutes.
_PLENTY = 1000


@dataclass(frozen=True)
class Effect:
    """How many times as long the head takes as the base."""

    ratio: float
    low: float
    high: float
    confidence: float  # of the interval, as computed: 0.969 for six rounds, 0 for a single one
    p: float  # two-sided, of "no effect"
    n: int  # rounds; without pairs the values of the smaller side
    paired: bool


def paired_effect(
    base: Sequence[float] | Values, head: Sequence[float] | Values, confidence: float = 0.95
) -> Effect:
    """The effect from rounds: value i of both sides was measured in round i.

    The ratio is the median of all pairwise means of the log-ratios (Walsh averages), the interval
    lies between two of them, and p comes from flipping the signs of the log-ratios in all 2^n ways.
    """
    if len(base) != len(head):
        raise ValueError(f"{len(base)} base values, {len(head)} head values: not pairs")
    # Readings of a coarse clock give equal ratios; rounding must not tell them apart.
    differences = np.round(_logarithms(head) - _logarithms(base), 12)
    n = len(differences)
    first, second = np.triu_indices(n)
    walsh = np.sort((differences[first] + differences[second]) / 2)
    return _effect(walsh, _signed_rank_tail(n), confidence, _signed_rank_p(differences), n, True)


def unpaired_effect(
    base: Sequence[float] | Values, head: Sequence[float] | Values, confidence: float = 0.95
) -> Effect:
    """The effect from two separate sets of values, by Mann-Whitney's test and its interval."""
    one, other = _logarithms(base), _logarithms(head)
    between = np.sort((other[:, None] - one[None, :]).ravel())
    tail = _rank_sum_tail(len(other), len(one))
    fewest = min(len(one), len(other))
    return _effect(between, tail, confidence, _rank_sum_p(one, other), fewest, False)


def smallest_p(base: int, head: int, paired: bool) -> float:
    """The smallest p-value that so many values can give: all of one side beyond the other's."""
    base, head = (min(n, _PLENTY) for n in (base, head))
    return 2 / (2**base if paired else math.comb(base + head, base))


def fewest_values(comparisons: int, alpha: float, paired: bool) -> int:
    """So many values of each side, and the smallest p-value survives Holm's correction."""
    return next(n for n in itertools.count(1) if comparisons * smallest_p(n, n, paired) < alpha)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given (Holm 1979).

    Rejecting those below α errs in any of them with probability α at most, however they depend on
    each other.
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
    """The k-th smallest and k-th largest of the ordered candidates, k by the test's lower tail.

    `tail[c]` is the probability that the statistic is c or less; a true ratio lies below the k-th
    smallest candidate with probability `tail[k - 1]`.
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
    """With the continuity correction: half a step of the statistic."""
    if deviation == 0:
        return 1.0
    return min(1.0, 2 * NormalDist().cdf(-max(0.0, abs(distance) - step / 2) / deviation))


def _doubled_ranks(values: Values) -> NDArray[np.int64]:
    """Twice the mean rank of every value: whole numbers, also where values are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((2 * last - counts + 1)[inverse], dtype=np.int64)


# --- pairs: the sum of the ranks with a positive sign ---------------------------------------------


def _signed_rank_p(differences: Values) -> float:
    ranks = _doubled_ranks(np.abs(differences))
    free = ranks[differences != 0]  # a zero keeps its rank and has no sign to flip
    positive = int(ranks[differences > 0].sum())
    if len(free) > _MAX_PAIRS:
        deviation = math.sqrt(float((free.astype(float) ** 2).sum())) / 2
        return _normal_two_sided(positive - free.sum() / 2, deviation, 2)
    return _two_sided(_sums_of_flips(tuple(int(r) for r in np.sort(free))), positive)


@lru_cache(maxsize=256)
def _sums_of_flips(ranks: tuple[int, ...]) -> Values:
    """Probability of every sum when each rank is in it or not, by the toss of a coin."""
    probabilities = np.zeros(sum(ranks) + 1)
    probabilities[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(probabilities)
        shifted[rank:] = probabilities[: len(probabilities) - rank]
        probabilities = (probabilities + shifted) / 2
    return probabilities


@lru_cache(maxsize=256)
def _signed_rank_tail(n: int) -> Values:
    """P(number of positive Walsh averages ≤ c) for c = 0, 1, …, up to their middle."""
    most = n * (n + 1) // 2
    if n <= _MAX_PAIRS:
        probabilities = _sums_of_flips(tuple(range(1, n + 1)))
        return np.asarray(np.cumsum(probabilities)[: most // 2 + 1])
    deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return _normal_tail(most, deviation)


# --- no pairs: the sum of the ranks of one side ---------------------------------------------------


def _rank_sum_p(one: Values, other: Values) -> float:
    ranks = _doubled_ranks(np.concatenate([other, one]))
    observed = int(ranks[: len(other)].sum())
    if len(ranks) > _MAX_UNPAIRED:
        # The variance of a sum drawn without replacement: right with equal values as well.
        share = len(other) * len(one) / (len(ranks) * (len(ranks) - 1))
        deviation = math.sqrt(share * float(((ranks - ranks.mean()) ** 2).sum()))
        return _normal_two_sided(observed - len(other) * ranks.mean(), deviation, 2)
    ordered = tuple(int(r) for r in np.sort(ranks))
    return _two_sided(_sums_of_draws(ordered, len(other)), observed)


@lru_cache(maxsize=64)
def _sums_of_draws(ranks: tuple[int, ...], drawn: int) -> Values:
    """Probability of every sum of `drawn` ranks, all choices being equally likely."""
    # chosen[j, s]: of the ranks seen so far, the share of the choices of j that add up to s.
    chosen = np.zeros((drawn + 1, sum(ranks[-drawn:]) + 1))
    chosen[0, 0] = 1.0
    for seen, rank in enumerate(ranks):
        for j in range(min(drawn, seen + 1), 0, -1):
            taken = j / (seen + 1)  # how many of the choices of j contain the newest rank
            chosen[j] *= 1 - taken
            chosen[j, rank:] += taken * chosen[j - 1, : chosen.shape[1] - rank]
    return np.asarray(chosen[drawn])


@lru_cache(maxsize=64)
def _rank_sum_tail(drawn: int, left: int) -> Values:
    """P(U ≤ c) for c = 0, 1, …, up to its middle."""
    most = drawn * left
    if drawn + left <= _MAX_UNPAIRED:
        ranks = tuple(range(1, drawn + left + 1))
        probabilities = _sums_of_draws(ranks, drawn)[drawn * (drawn + 1) // 2 :]
        return np.asarray(np.cumsum(probabilities)[: most // 2 + 1])
    return _normal_tail(most, math.sqrt(most * (drawn + left + 1) / 12))


def _normal_tail(most: int, deviation: float) -> Values:
    normal = NormalDist(most / 2, deviation)
    return np.array([normal.cdf(c + 0.5) for c in range(most // 2 + 1)])
