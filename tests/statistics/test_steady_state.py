from __future__ import annotations

import warnings

import numpy as np
import pytest
import ruptures

from firstlight.statistics.steady_state import change_points, classify, outliers
from firstlight.statistics.summary import common_class

GENERATOR = np.random.default_rng(7)


def noisy(*levels: tuple[float, float, int]) -> np.ndarray:
    """Pieces of (mean, standard deviation, length)."""
    return np.concatenate([GENERATOR.normal(m, s, n) for m, s, n in levels])


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
    state = classify(noisy((1.0, 0.05, 250), (3.0, 0.05, 50)))
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


def test_too_few_calls_to_tell_are_taken_as_they_are() -> None:
    state = classify([3.0, 1.0, 1.0])
    assert (state.steady_class, state.begins) == ("too few calls", 0)


def test_a_case_is_inconsistent_when_its_processes_disagree() -> None:
    assert common_class(["flat"] * 5 + ["warmup"]) == "flat"
    assert common_class(["flat"] * 3 + ["warmup"] * 3) == "warmup"
    assert common_class(["flat"] * 3 + ["slowdown"] * 3) == "inconsistent"
    assert common_class(["flat"] * 2 + ["warmup"] * 2 + ["no steady state"] * 2) == "inconsistent"
