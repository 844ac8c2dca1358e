from __future__ import annotations

import itertools
import math
from itertools import accumulate

import numpy as np
import pytest
from scipy import stats

from firstlight.measure.planning import MAX_PROCESSES
from firstlight.statistics.intervals import median, median_estimate


@pytest.mark.parametrize("n", range(1, 13))
def test_coverage_equals_a_count_of_all_sign_patterns(n: int) -> None:
    """Oracle: each value lies below the median or not, 2^n equally likely patterns, all counted."""
    below = [sum(pattern) for pattern in itertools.product((0, 1), repeat=n)]
    for k in range(1, n // 2 + 1):
        enclosed = sum(k <= count <= n - k for count in below) / 2**n
        found = median_estimate(list(range(n)), enclosed - 1e-9)
        assert (found.low, found.high) == (k - 1, n - k)
        assert math.isclose(found.confidence, enclosed, abs_tol=1e-12)


@pytest.mark.parametrize("n", [1023, 1024, MAX_PROCESSES])
def test_more_processes_than_a_float_power_of_two_allows_have_an_interval(n: int) -> None:
    """Oracle: scipy's binomial distribution."""
    found = median_estimate(list(range(n)))
    rank = int(stats.binom.ppf(0.025, n, 0.5))  # the largest k with P(X < k) ≤ 2.5 %
    assert (found.low, found.high) == (rank - 1, n - rank)
    assert found.confidence == pytest.approx(1 - 2 * stats.binom.cdf(rank - 1, n, 0.5), abs=1e-12)


DISTRIBUTIONS = {
    "exponential": (lambda r, n: r.exponential(1.0, n), math.log(2)),
    "lognormal": (lambda r, n: r.lognormal(0.0, 1.0, n), 1.0),
    "bimodal": (lambda r, n: r.normal(0, 0.1, n) + 5 * (r.random(n) < 0.3), None),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [3, 6, 10, 20])
def test_interval_covers_the_true_median_at_its_stated_rate(name: str, n: int) -> None:
    draw, truth = DISTRIBUTIONS[name]
    generator = np.random.default_rng([n, len(name)])
    if truth is None:
        truth = float(np.median(draw(generator, 4_000_000)))
    estimates = [median_estimate(list(draw(generator, n))) for _ in range(2000)]
    covered = sum(e.low <= truth <= e.high for e in estimates) / 2000
    stated = estimates[0].confidence
    sigma = math.sqrt(stated * (1 - stated) / 2000)
    assert abs(covered - stated) <= 4 * sigma


def test_interval_is_the_narrowest_that_reaches_its_confidence() -> None:
    for n in range(6, 60):
        e = median_estimate([float(i) for i in range(n)])
        assert e.confidence >= 0.95
        k = int(e.low) + 1
        assert 2 * (k + 1) > n or 1 - 2 * stats.binom.cdf(k, n, 0.5) < 0.95


def test_fewer_than_six_values_say_that_they_do_not_reach_95_percent() -> None:
    assert median_estimate([1.0, 2.0, 3.0, 4.0, 5.0]).confidence == 0.9375
    one = median_estimate([7.0])
    assert (one.median, one.low, one.high, one.n, one.confidence) == (7.0, 7.0, 7.0, 1, 0.0)


def test_median_agrees_with_numpy() -> None:
    generator = np.random.default_rng(0)
    for n in range(1, 30):
        values = list(generator.normal(size=n))
        assert median(values) == pytest.approx(np.median(values), rel=1e-15)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 100, 1023, 1024, 1100])
def test_the_interval_is_the_one_that_binomial_coefficients_give(n: int) -> None:
    """Computed with `math.comb`; the estimate derives each coefficient from the one before."""
    below = accumulate((math.comb(n, i) for i in range(n // 2 + 1)), initial=0)
    covered = [1 - 2 * (ways / 2**n) for ways in below]
    k = max((k for k in range(2, n // 2 + 1) if covered[k] >= 0.95), default=1)
    found = median_estimate([float(i) for i in range(n)])
    assert (found.low, found.high) == (k - 1, n - k)
    assert found.confidence == max(0.0, covered[k])
