"""What is compared of two processes whose calls were made in turns."""

from __future__ import annotations

import math
import random

import pytest

from firstlight.compare.quantities import MIN_WINDOWS, round_times, sample_times
from firstlight.records import ColdStart, Sample, WarmCalls

CALLS = 30  # of each window


def sample(calls: list[float], turns: int = 20) -> Sample:
    warm = WarmCalls(tuple(calls), 1, (1.0,), (CALLS,) * turns)
    cold = ColdStart(1.0, {}, 0.0)
    return Sample("case", "timed", 0, 0, "", "ok", cold=cold, warm=warm)


def two_sides(head: float, turns: int = 20, seed: int = 3) -> tuple[Sample, Sample]:
    """A machine that is up to twice as slow for the length of a window."""
    draw = random.Random(seed)
    base, other = [], []
    for _ in range(20):
        machine = 1e-3 * draw.choice((1.0, 1.0, 1.6, 2.0))
        base += [machine * (1 + draw.random() / 100) for _ in range(CALLS)]
        other += [head * machine * (1 + draw.random() / 100) for _ in range(CALLS)]
    return sample(base, turns), sample(other, turns)


@pytest.mark.parametrize("head", [1.0, 1.1, 0.8])
def test_alternating_windows_give_the_ratio_on_a_machine_that_changes(head: float) -> None:
    for seed in range(20):
        one, other = round_times(*two_sides(head, seed=seed))
        found = other["warm_call_seconds"] / one["warm_call_seconds"]
        assert found == pytest.approx(head, rel=0.005)


def test_swapping_the_sides_inverts_the_ratio_exactly() -> None:
    """The p-value depends on the sides only through the signs of log-ratios."""
    base, head = two_sides(1.1)
    there, back = round_times(base, head), round_times(head, base)
    assert there[0]["warm_call_seconds"] == pytest.approx(back[1]["warm_call_seconds"], rel=1e-14)
    assert there[1]["warm_call_seconds"] == pytest.approx(back[0]["warm_call_seconds"], rel=1e-14)


def test_the_mean_level_and_all_other_times_are_unchanged() -> None:
    base, head = two_sides(1.1)
    one, other = round_times(base, head)
    plain = sample_times(base), sample_times(head)
    product = math.prod(times["warm_call_seconds"] for times in plain)
    assert one["warm_call_seconds"] * other["warm_call_seconds"] == pytest.approx(product)
    for times, as_they_were in zip((one, other), plain, strict=True):
        assert times | {"warm_call_seconds": 0} == as_they_were | {"warm_call_seconds": 0}


def test_warm_up_within_the_first_windows_does_not_count() -> None:
    base, head = two_sides(1.0)
    assert head.warm is not None
    slow = [9 * t if i < 5 * CALLS else t for i, t in enumerate(head.warm.call_seconds)]
    one, other = round_times(base, sample(slow))
    assert other["warm_call_seconds"] / one["warm_call_seconds"] == pytest.approx(1, rel=0.005)


def test_processes_that_did_not_take_turns_are_compared_as_a_whole() -> None:
    base, head = two_sides(1.1, turns=MIN_WINDOWS - 1)
    assert round_times(base, head) == (sample_times(base), sample_times(head))
