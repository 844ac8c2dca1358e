from __future__ import annotations

import math

import numpy as np
import pytest

from firstlight.statistics.steps import find_steps


def series(generator: np.random.Generator, *levels: tuple[float, int], noise: float) -> list[float]:
    return [float(v) for level, n in levels for v in level * np.exp(generator.normal(0, noise, n))]


def test_a_step_is_found_where_it_is_and_with_its_size() -> None:
    values = series(np.random.default_rng(0), (2.0, 20), (2.4, 15), noise=0.02)
    (step,) = find_steps(values)
    assert step.index == 20
    assert step.ratio == pytest.approx(1.2, rel=0.03)
    assert (step.before, step.after) == pytest.approx((2.0, 2.4), rel=0.02)


def test_a_step_up_and_a_step_down_are_two() -> None:
    values = series(np.random.default_rng(1), (1.0, 15), (1.3, 12), (1.0, 15), noise=0.02)
    steps = find_steps(values)
    assert [s.index for s in steps] == [15, 27]
    assert steps[0].ratio > 1 > steps[1].ratio


@pytest.mark.parametrize("n", [12, 20, 40, 100])
@pytest.mark.parametrize("noise", ["normal", "heavy tail"])
def test_a_series_without_a_step_rarely_shows_one(n: int, noise: str) -> None:
    generator, trials = np.random.default_rng([n, len(noise)]), 200
    false = 0
    for _ in range(trials):
        logs = (
            generator.normal(0, 0.05, n) if noise == "normal" else 0.04 * generator.standard_t(3, n)
        )
        false += bool(find_steps(list(np.exp(logs))))
    assert false / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_ten_percent_is_found_in_most_series_of_twenty() -> None:
    generator = np.random.default_rng(2)
    found = 0
    for _ in range(100):
        steps = find_steps(series(generator, (1.0, 10), (1.1, 10), noise=0.03))
        found += any(abs(s.index - 10) <= 2 for s in steps)
    assert found >= 85


def test_one_odd_snapshot_is_not_a_step() -> None:
    values = series(np.random.default_rng(3), (1.0, 30), noise=0.02)
    values[14] *= 3
    assert find_steps(values) == []


def test_a_step_too_small_to_matter_is_not_reported() -> None:
    values = series(np.random.default_rng(4), (1.0, 30), (1.01, 30), noise=0.0005)
    assert find_steps(values) == []
    assert [s.index for s in find_steps(values, min_step=0.005)] == [30]


def test_short_and_constant_series_have_no_steps() -> None:
    assert find_steps([]) == []
    assert find_steps([1.0] * 4 + [2.0] * 5) == []
    assert find_steps([1.0] * 50) == []


def test_values_without_a_logarithm_are_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        find_steps([1.0, 0.0])
