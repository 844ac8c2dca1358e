from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from firstlight.statistics import effects
from firstlight.statistics.effects import holm, paired_effect, unpaired_effect

Draw = Callable[[np.random.Generator, int], np.ndarray]


def times(generator: np.random.Generator, n: int, deviation: float = 0.1) -> np.ndarray:
    return generator.lognormal(0.0, deviation, n)


# --- p-values against other people's programs and against counting everything ---------------------


@pytest.mark.parametrize("n", [1, 2, 5, 6, 12, 17, 25, 49])
def test_paired_p_is_that_of_scipys_exact_wilcoxon_test(n: int) -> None:
    generator = np.random.default_rng(n)
    for shift in (1.0, 1.05):
        base, head = times(generator, n), shift * times(generator, n)
        expected = stats.wilcoxon(np.log(head / base), method="exact").pvalue
        assert paired_effect(base, head).p == pytest.approx(expected, rel=1e-12)


def test_paired_p_with_equal_and_zero_differences_is_that_of_all_sign_flips() -> None:
    """Oracle: every one of the 2^9 assignments of signs, ranks by scipy."""
    differences = np.array([0.5, -0.5, 0.5, 1.0, 1.0, 0.0, 0.25, -0.25, 2.0])
    ranks = stats.rankdata(np.abs(differences))
    observed = ranks[differences > 0].sum()
    free = ranks[differences != 0]
    sums = np.array([np.dot(free, signs) for signs in itertools.product((0, 1), repeat=len(free))])
    expected = 2 * min(np.mean(sums >= observed), np.mean(sums <= observed))
    base = np.ones(9)
    assert paired_effect(base, np.exp(differences)).p == pytest.approx(
        min(1.0, expected), rel=1e-12
    )


@pytest.mark.parametrize(("m", "n"), [(3, 4), (6, 6), (10, 7), (20, 30), (50, 50)])
def test_unpaired_p_is_that_of_scipys_exact_mann_whitney_test(m: int, n: int) -> None:
    generator = np.random.default_rng([m, n])
    for shift in (1.0, 1.08):
        base, head = times(generator, m), shift * times(generator, n)
        expected = stats.mannwhitneyu(head, base, method="exact").pvalue
        assert unpaired_effect(base, head).p == pytest.approx(expected, rel=1e-9)


def test_unpaired_p_with_equal_values_is_that_of_all_choices() -> None:
    """Oracle: every way to choose four of nine values, ranks by scipy."""
    base, head = [1.0, 2.0, 2.0, 3.0, 3.0], [2.0, 3.0, 3.0, 4.0]
    ranks = stats.rankdata([*head, *base])
    sums = np.array([sum(c) for c in itertools.combinations(ranks, 4)])
    observed = ranks[:4].sum()
    expected = 2 * min(np.mean(sums >= observed), np.mean(sums <= observed))
    assert unpaired_effect(base, head).p == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shift", [1.0, 1.02, 1.05])
def test_the_normal_approximation_joins_the_exact_test_where_it_takes_over(
    shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(5)
    base, head = times(generator, 200), shift * times(generator, 200)
    exact = paired_effect(base, head)
    few = unpaired_effect(base[:50], head[:50])
    monkeypatch.setattr(effects, "_MAX_PAIRS", 0)
    monkeypatch.setattr(effects, "_MAX_UNPAIRED", 0)
    effects._signed_rank_tail.cache_clear()
    effects._rank_sum_tail.cache_clear()
    approximate, few_approximate = paired_effect(base, head), unpaired_effect(base[:50], head[:50])
    effects._signed_rank_tail.cache_clear()
    effects._rank_sum_tail.cache_clear()
    assert approximate.p == pytest.approx(exact.p, rel=0.1, abs=2e-4)
    assert few_approximate.p == pytest.approx(few.p, rel=0.1, abs=2e-4)
    assert (approximate.low, approximate.high) == pytest.approx((exact.low, exact.high), abs=1e-3)
    assert (few_approximate.low, few_approximate.high) == pytest.approx(
        (few.low, few.high), abs=2e-3
    )


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [6, 9, 14])
def test_interval_of_pairs_holds_exactly_the_ratios_that_the_test_accepts(n: int) -> None:
    """Oracle: scipy's test of many shifts; its p crosses 5 % at the ends of the interval."""
    generator = np.random.default_rng(100 + n)
    base, head = times(generator, n), 1.03 * times(generator, n)
    effect = paired_effect(base, head)
    for end, inside in ((effect.low, 1 + 1e-9), (effect.high, 1 - 1e-9)):
        logs = np.log(head / base)
        accepted = stats.wilcoxon(logs - math.log(end * inside), method="exact").pvalue
        rejected = stats.wilcoxon(logs - math.log(end / inside), method="exact").pvalue
        assert rejected <= 0.05 < accepted


def test_interval_without_pairs_holds_exactly_the_ratios_that_the_test_accepts() -> None:
    generator = np.random.default_rng(3)
    base, head = times(generator, 8), 1.03 * times(generator, 11)
    effect = unpaired_effect(base, head)
    for end, inside in ((effect.low, 1 + 1e-9), (effect.high, 1 - 1e-9)):
        accepted = stats.mannwhitneyu(head / (end * inside), base, method="exact").pvalue
        rejected = stats.mannwhitneyu(head / (end / inside), base, method="exact").pvalue
        assert rejected <= 0.05 < accepted


#: Noise of one process; both sides of a pair have it.
NOISES: dict[str, Draw] = {
    "normal": lambda r, n: r.normal(0, 0.05, n),
    "heavy tail": lambda r, n: 0.03 * r.standard_t(2, n),
    "skewed": lambda r, n: r.exponential(0.05, n),
    "two speeds": lambda r, n: r.normal(0, 0.01, n) + 0.3 * (r.random(n) < 0.3),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("n", [6, 12, 20, 30])
def test_interval_of_pairs_covers_the_true_ratio_at_its_stated_rate(noise: str, n: int) -> None:
    draw, truth, trials = NOISES[noise], 1.07, 1500
    generator = np.random.default_rng([n, len(noise)])
    effects = []
    for _ in range(trials):
        drift = np.cumsum(generator.normal(0, 0.1, n))  # common to both sides of a round
        base = np.exp(drift + draw(generator, n))
        effects.append(paired_effect(base, truth * np.exp(drift + draw(generator, n))))
    stated = effects[0].confidence
    assert 0.95 <= stated < 0.97
    covered = sum(e.low <= truth <= e.high for e in effects) / trials
    assert abs(covered - stated) <= 4 * math.sqrt(stated * (1 - stated) / trials)


@pytest.mark.parametrize("noise", NOISES)
def test_interval_without_pairs_covers_the_true_ratio_at_its_stated_rate(noise: str) -> None:
    draw, truth, trials = NOISES[noise], 0.9, 1500
    generator = np.random.default_rng([7, len(noise)])
    effects = [
        unpaired_effect(np.exp(draw(generator, 10)), truth * np.exp(draw(generator, 13)))
        for _ in range(trials)
    ]
    stated = effects[0].confidence
    covered = sum(e.low <= truth <= e.high for e in effects) / trials
    assert abs(covered - stated) <= 4 * math.sqrt(stated * (1 - stated) / trials)


@pytest.mark.parametrize("n", [6, 12, 20])
def test_p_of_pairs_is_below_alpha_with_probability_at_most_alpha(n: int) -> None:
    """Also if the machine drifts or processes have two speeds."""
    generator = np.random.default_rng(n)
    draw, trials = NOISES["two speeds"], 2000
    alarms = 0
    for _ in range(trials):
        drift = np.cumsum(generator.normal(0, 0.1, n))
        base, head = (np.exp(drift + draw(generator, n)) for _ in range(2))
        alarms += paired_effect(base, head).p < 0.05
    assert alarms / trials <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)


def test_six_rounds_are_the_fewest_whose_interval_reaches_95_percent() -> None:
    base = np.ones(6)
    head = np.array([1.01, 1.02, 1.03, 1.04, 1.05, 1.06])
    assert paired_effect(base, head).confidence == pytest.approx(1 - 2 / 64)
    assert paired_effect(base[:5], head[:5]).confidence == pytest.approx(1 - 2 / 32)
    assert paired_effect(base[:1], head[:1]).confidence == 0.0


def test_one_wild_round_moves_neither_estimate_nor_interval_by_much() -> None:
    generator = np.random.default_rng(11)
    base, head = times(generator, 20, 0.01), 1.1 * times(generator, 20, 0.01)
    calm = paired_effect(base, head)
    head[4] *= 50
    wild = paired_effect(base, head)
    assert wild.ratio == pytest.approx(calm.ratio, rel=0.01)
    assert (wild.low, wild.high) == pytest.approx((calm.low, calm.high), rel=0.02)


def test_exchanging_the_sides_inverts_the_effect() -> None:
    generator = np.random.default_rng(12)
    base, head = times(generator, 13), 1.1 * times(generator, 13)
    for function in (paired_effect, unpaired_effect):
        there, back = function(base, head), function(head, base)
        assert back.ratio == pytest.approx(1 / there.ratio)
        assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))
        assert back.p == pytest.approx(there.p)


def test_values_that_have_no_ratio_are_refused() -> None:
    for bad in ([0.0, 1.0], [-1.0, 1.0], [math.nan, 1.0], [math.inf, 1.0]):
        with pytest.raises(ValueError, match="positive"):
            paired_effect([1.0, 1.0], bad)
    with pytest.raises(ValueError, match="not pairs"):
        paired_effect([1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="positive"):
        unpaired_effect([], [1.0])


# --- Holm -----------------------------------------------------------------------------------------


def test_holm_agrees_with_scipys_definition_by_hand() -> None:
    """Holm's own step-down rule: reject while p_(i) <= alpha / (m - i + 1)."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        p = list(generator.random(6) ** 4)
        adjusted = holm(p)
        for alpha in (0.01, 0.05, 0.3):
            rejected, order = set(), sorted(range(6), key=lambda i: p[i])
            for step, index in enumerate(order):
                if p[index] > alpha / (6 - step):
                    break
                rejected.add(index)
            assert {i for i in range(6) if adjusted[i] <= alpha} == rejected


def test_holm_of_nothing_and_of_one() -> None:
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.9, 0.9]) == [1.0, 1.0]
