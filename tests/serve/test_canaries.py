"""When a canary is taken back by itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import fisher_exact, hypergeom

from firstlight.serve.canaries import Trial, upper_tail


@pytest.mark.parametrize("seed", range(5))
def test_the_p_value_is_that_of_fishers_exact_test(seed: int) -> None:
    draw = np.random.default_rng(seed)
    for _ in range(40):
        good, bad = draw.integers(0, [[500], [40]], (2, 2))
        table = [[bad[0], good[0]], [bad[1], good[1]]]
        found = upper_tail(bad[0], bad[0] + good[0], bad.sum(), (bad + good).sum())
        assert found == pytest.approx(fisher_exact(table, "greater")[1], rel=1e-9)


def test_the_p_value_of_large_tables_is_scipys() -> None:
    for bad in (100, 130, 200):
        found = upper_tail(bad, 100_000, 1_000, 1_000_000)
        expected = hypergeom.sf(bad - 1, 1_000_000, 1_000, 100_000)
        assert found == pytest.approx(expected, rel=1e-6)


def taken_back_after(
    seed: int, share: float, current: float, canary: float, false_alarms: float, requests: int
) -> int | None:
    """How many requests the canary has answered when it is taken back."""
    draw = np.random.default_rng(seed)
    ended: list[int] = []
    trial = Trial(lambda: ended.append(trial.canary.requests), false_alarms)
    to_canary = draw.random(requests) < share
    is_bad = draw.random(requests) < np.where(to_canary, canary, current)
    for chosen, bad in zip(to_canary, is_bad, strict=True):
        (trial.canary if chosen else trial.current).add(1, int(bad))
    return ended[0] if ended else None


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_no_more_sound_canaries_are_taken_back_than_the_rule_says(
    rate: float, share: float
) -> None:
    """With a rate of one in ten, which can be counted; looks are the same for any rate."""
    alarms = sum(
        taken_back_after(seed, share, rate, rate, 0.1, 1500) is not None for seed in range(120)
    )
    assert alarms <= 20  # binomial(120, 0.1) is above with a probability of 0.01


def test_a_canary_that_answers_only_nan_is_taken_back_at_the_first_look() -> None:
    assert [taken_back_after(s, 0.2, 0.0, 1.0, 1e-4, 500) for s in range(20)] == [8] * 20


def test_a_canary_that_fails_a_little_more_often_is_taken_back_in_the_end() -> None:
    for seed in range(3):
        assert taken_back_after(seed, 0.3, 0.01, 0.05, 1e-4, 20_000) is not None


def test_bad_requests_of_both_versions_take_nothing_back() -> None:
    """A client that sends NaN gets NaN from either."""
    assert taken_back_after(1, 0.2, 1.0, 1.0, 1e-4, 5000) is None
