from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import ruptures

from firstlight.statistics.case_summaries import common_class
from firstlight.statistics.change_points import change_points
from firstlight.statistics.steady_state import classify, outliers


def noisy(*levels: tuple[float, float, int]) -> np.ndarray:
    """Pieces of (mean, standard deviation, length)."""
    generator = np.random.default_rng(7)
    return np.concatenate([generator.normal(m, s, n) for m, s, n in levels])


@pytest.mark.parametrize("trial", range(8))
def test_change_points_are_those_that_ruptures_finds(trial: int) -> None:
    generator = np.random.default_rng(trial)
    pieces = [
        generator.normal(generator.uniform(1, 3), generator.uniform(0.05, 0.5), n)
        for n in generator.integers(8, 60, size=4)
    ]
    series = np.concatenate(pieces)
    scaled = (series - series.mean()) / series.std()
    penalty = 15 * np.log(len(series))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ruptures announces a change of its version 1.1.5
        search = ruptures.Pelt(model="normal", min_size=5, jump=1).fit(scaled)
        expected = search.predict(pen=penalty)[:-1]
    assert change_points(series) == expected


def test_a_long_series_is_cut_where_ruptures_cuts_it_with_the_same_jump() -> None:
    generator = np.random.default_rng(3)
    pieces = [generator.normal(level, 0.2, 233) for level in (1, 2, 1.5, 3, 2.5, 1, 2, 1, 3)]
    series = np.concatenate(pieces)[:2097]  # cut at every third value
    scaled = (series - series.mean()) / series.std()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = ruptures.Pelt(model="normal", min_size=6, jump=3).fit(scaled)
        expected = search.predict(pen=15 * np.log(len(series)))[:-1]
    assert change_points(series) == expected and len(expected) == 8


def costs_of(values: np.ndarray) -> np.ndarray:
    """By [start, end]: the cost of every segment of at least five values, others infinite."""
    z = (values - values.mean()) / values.std()
    costs = np.full((len(z), len(z) + 1), np.inf)
    for start in range(len(z)):
        for end in range(start + 5, len(z) + 1):
            costs[start, end] = (end - start) * np.log(z[start:end].var() + 1e-6)
    return costs


def full_search(costs: np.ndarray, penalty: float) -> list[int]:
    """The plain recursion: every start for every end."""
    n = len(costs)
    best, cuts = np.full(n + 1, np.inf), {0: list[int]()}
    best[0] = -penalty
    for end in range(5, n + 1):
        totals = best[:n] + costs[:, end] + penalty
        start = int(np.argmin(totals))
        best[end], cuts[end] = totals[start], [*cuts[start], start]
    return cuts[n][1:]


SHAPES = {
    "flat": lambda n, draw: draw.lognormal(0, 0.3, n),
    "drift": lambda n, draw: np.linspace(0, 4, n) + draw.normal(0, 0.3, n),
    "walk": lambda n, draw: np.cumsum(draw.normal(0, 0.1, n)),
    "waves": lambda n, draw: np.sin(np.arange(n) / 9) + draw.normal(0, 0.2, n),
    "louder": lambda n, draw: draw.normal(0, 1, n) * np.exp(np.linspace(-3, 3, n)),
    "steps": lambda n, draw: draw.normal(0, 1, n) + 2 * (np.arange(n) // 30 % 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n", [10, 53, 101, 170])
def test_leaving_out_starts_that_cannot_win_changes_no_result(shape: str, n: int) -> None:
    series = SHAPES[shape](n, np.random.default_rng(n))
    costs = costs_of(series)
    for penalty in (15 * np.log(n), 4 * np.log(n), 1.0):
        assert change_points(series, penalty) == full_search(costs, penalty), penalty


@pytest.mark.parametrize("shape", SHAPES)
def test_a_series_is_taken_for_one_segment_only_where_the_full_search_finds_no_change(
    shape: str,
) -> None:
    """Around the smallest penalty without a change point, where a wrong bound would show."""
    series = SHAPES[shape](60, np.random.default_rng(5))
    costs = costs_of(series)
    low, high = 0.0, 512.0
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (middle, high) if full_search(costs, middle) else (low, middle)
    for penalty in (low - 5, low - 0.5, low, high, high + 0.5, high + 5):
        assert change_points(series, penalty) == full_search(costs, penalty), penalty


def test_a_flat_series_is_proved_to_have_no_change_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from firstlight.statistics.change_points import _Search

    monkeypatch.setattr(_Search, "run", lambda self, penalty: pytest.fail("it was searched"))
    for n in (40, 200, 1000):
        series = np.random.default_rng(1).uniform(1, 1.02, n)
        assert change_points(series) == []


@pytest.mark.parametrize("before, after", [(1.0, 2.0), (2.0, 1.0), (1.0, 1.3), (1.0, 5.0)])
def test_a_step_in_the_last_quarter_is_no_steady_state_wherever_it_is(
    before: float, after: float
) -> None:
    """More than a tenth of the last quarter is at each level, so neither is that of the end."""
    for late in (0.04, 0.06, 0.1, 0.125, 0.15, 0.2, 0.22):
        steps = int(1000 * late)
        series = noisy((before, 0.01 * before, 1000 - steps), (after, 0.01 * after, steps))
        assert classify(series).steady_class == "no steady state", late


@pytest.mark.parametrize("after", [0.5, 1.2, 2.0])
@pytest.mark.parametrize("length", [60, 100, 150, 250])
def test_a_step_just_before_the_end_of_a_short_series_is_no_steady_state(
    length: int, after: float
) -> None:
    """Fewer calls than a tenth of the rolling window, which method 2 takes for outliers."""
    late = max(5, length // 40 + 2)  # more than a tenth of the last quarter
    for seed in range(25):
        draw = np.random.default_rng(seed).normal
        series = np.concatenate([draw(1, 0.01, length - late), draw(after, 0.01 * after, late)])
        assert classify(series).steady_class == "no steady state", seed
        assert classify(series, method=2).steady_class == "flat", seed


def test_spikes_near_the_end_are_still_set_aside() -> None:
    """One call in thirty is many times as slow, in series of all lengths."""
    for seed in range(300):
        draw = np.random.default_rng(seed)
        length = int(draw.integers(30, 400))
        slow = draw.random(length) < 0.03
        series = np.where(slow, draw.uniform(2, 30, length), draw.normal(1, 0.02, length))
        assert classify(series).steady_class == "flat", seed


def test_summaries_by_method_1_still_take_such_a_step_for_noise() -> None:
    series = noisy((1.0, 0.01, 875), (2.0, 0.02, 125))
    assert classify(series, method=1).steady_class == "flat"
    assert classify(noisy((1.0, 0.3, 1000))).steady_class == "flat"  # noise is noise in both


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_for_a_series_is_bounded_however_long_it_is(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full search of 100 000 calls would evaluate 5 · 10⁹ segments."""
    from firstlight.statistics.change_points import _Search

    looked_at = 0
    spread = _Search._spread

    def counted(self: _Search, starts: np.ndarray, ends: np.ndarray) -> Any:
        nonlocal looked_at
        looked_at += np.broadcast(starts, ends).size
        return spread(self, starts, ends)

    monkeypatch.setattr(_Search, "_spread", counted)
    classify(SHAPES[shape](100_000, np.random.default_rng(0)))
    assert looked_at < 1024**2
    if shape == "flat":  # what nearly every process is, and where pruning as in PELT does nothing
        looked_at = 0
        change_points(SHAPES[shape](1000, np.random.default_rng(0)))
        assert looked_at < 0.2 * 1000**2 / 2


def test_quantiles_of_rolling_windows_are_those_of_numpy() -> None:
    for n in (20, 105, 211, 345):
        values = np.random.default_rng(n).standard_cauchy(n)
        expected = np.zeros(n, dtype=bool)
        for start in range(0, n, 10):
            window = values[max(0, start - 100) : start + 110]
            low, middle, high = np.percentile(window, (10, 50, 90))
            block = slice(start, start + 10)
            expected[block] = np.abs(values[block] - middle) > 3 * (high - low)
        assert expected.any() and np.array_equal(outliers(values), expected)


def test_a_series_without_change_is_flat() -> None:
    state = classify(noisy((1.0, 0.05, 300)))
    assert (state.steady_class, state.begins) == ("flat", 0)


def test_slow_first_calls_are_a_warmup_and_the_steady_part_begins_after_them() -> None:
    state = classify(noisy((5.0, 0.1, 40), (1.0, 0.05, 260)))
    assert state.steady_class == "warmup"
    assert state.begins is not None and 38 <= state.begins <= 42


def test_calls_that_become_slower_are_a_slowdown() -> None:
    assert classify(noisy((1.0, 0.05, 100), (1.5, 0.05, 200))).steady_class == "slowdown"


def test_a_change_in_the_last_quarter_leaves_no_steady_state() -> None:
    state = classify(noisy((1.0, 0.05, 240), (3.0, 0.05, 60)))
    assert (state.steady_class, state.begins) == ("no steady state", None)


def test_a_difference_that_no_user_would_notice_is_flat() -> None:
    assert classify(noisy((1.01, 0.001, 100), (1.0, 0.001, 200))).steady_class == "flat"


def test_single_spikes_are_not_change_points() -> None:
    series = noisy((1.0, 0.02, 300))
    series[[50, 120, 200]] = 30.0
    assert outliers(series).sum() == 3
    assert classify(series).steady_class == "flat"


def test_a_short_disturbance_near_the_end_does_not_end_a_steady_state() -> None:
    series = noisy((1.0, 0.02, 1000))
    series[960:980] = 1.4
    assert classify(series).steady_class == "flat"


def test_a_few_slow_calls_at_the_start_are_a_warmup_however_few() -> None:
    state = classify(noisy((2.0, 0.02, 12), (1.0, 0.02, 988)))
    assert state.steady_class == "warmup"
    assert state.begins is not None and 10 <= state.begins <= 14


def test_constant_readings_of_a_coarse_clock_are_flat() -> None:
    assert classify([1e-6] * 200).steady_class == "flat"


def test_too_few_calls_are_all_used_and_classified_as_such() -> None:
    state = classify([3.0, 1.0, 1.0])
    assert (state.steady_class, state.begins) == ("too few calls", 0)


def test_a_case_is_inconsistent_when_its_processes_disagree() -> None:
    assert common_class(["flat"] * 5 + ["warmup"]) == "flat"
    assert common_class(["flat"] * 3 + ["warmup"] * 3) == "warmup"
    assert common_class(["flat"] * 3 + ["slowdown"] * 3) == "inconsistent"
    assert common_class(["flat"] * 2 + ["warmup"] * 2 + ["no steady state"] * 2) == "inconsistent"
