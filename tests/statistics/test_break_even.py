from __future__ import annotations

import math

import numpy as np
import pytest

from firstlight.statistics.break_even import Costs, break_even, crossing


def counted(cold: float, warm: float, other_cold: float, other_warm: float) -> float:
    """Oracle: add up call after call until the compiled total is lower."""
    total, other = cold, other_cold
    for n in range(1, 100_000):
        if total < other:
            return n
        total, other = total + warm, other + other_warm
    return math.inf


def test_crossing_equals_adding_up_call_by_call() -> None:
    generator = np.random.default_rng(3)
    for _ in range(300):
        cold, other_cold = generator.integers(1, 2000, 2)
        warm, other_warm = generator.integers(1, 50, 2)
        values = (float(cold), float(warm), float(other_cold), float(other_warm))
        assert crossing(*values) == counted(*values)


def test_a_compiled_case_that_is_no_faster_warm_never_pays() -> None:
    even = break_even(Costs([2.0] * 6, [1.0] * 6), {"numpy": Costs([1.0] * 6, [1.0] * 6)})
    assert even is not None
    assert (even.calls, even.low, even.high) == ("never", "never", "never")


def test_a_compiled_case_that_also_starts_faster_pays_at_once() -> None:
    even = break_even(Costs([1.0] * 6, [1.0] * 6), {"numpy": Costs([2.0] * 6, [5.0] * 6)})
    assert even is not None and even.calls == 1


def test_the_hardest_opponent_decides() -> None:
    compiled = Costs([10.0] * 6, [1.0] * 6)
    even = break_even(
        compiled, {"slow": Costs([1.0] * 6, [10.0] * 6), "fast": Costs([1.0] * 6, [2.0] * 6)}
    )
    assert even is not None
    assert even.against == "fast"
    assert even.calls == even.by_backend["fast"]["calls"] == 11
    assert even.by_backend["slow"]["calls"] == 3


def test_without_an_uncompiled_case_there_is_no_statement() -> None:
    assert break_even(Costs([1.0] * 6, [1.0] * 6), {}) is None


@pytest.mark.parametrize("n", [6, 20])
def test_interval_covers_the_true_crossing_at_least_at_its_stated_rate(n: int) -> None:
    """Lognormal times with medians 2, 0.001 against 0.2, 0.01: the true crossing is known."""
    generator = np.random.default_rng(n)
    truth = crossing(2.0, 0.001, 0.2, 0.01)

    def draws(middle: float) -> list[float]:
        return list(middle * generator.lognormal(0.0, 0.1, n))

    covered, stated = 0, 0.0
    for _ in range(2000):
        even = break_even(
            Costs(draws(2.0), draws(0.001)), {"numpy": Costs(draws(0.2), draws(0.01))}
        )
        assert even is not None
        low, high = (math.inf if isinstance(v, str) else v for v in (even.low, even.high))
        covered += low <= truth <= high
        stated = even.confidence
    assert stated == pytest.approx(0.875 if n == 6 else 0.9525, abs=0.02)
    assert covered / 2000 >= stated
