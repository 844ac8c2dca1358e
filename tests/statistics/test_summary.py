"""What may be said of a case, and what may not: samples in, statements out."""

from __future__ import annotations

from typing import Any

import pytest

from firstlight.records import PHASES, CacheProof, Case, CaseSummary, ColdStart, Sample, WarmCalls
from firstlight.statistics.case_summaries import summarise


def case(backend: str, compiled: bool = False, cache: str = "none") -> Case:
    return Case(
        id=f"w[s]/{backend}/{cache}", workload="w", size="s", backend=backend, cache=cache,
        title="", adapter="", program="", reference="r", parameters={}, tolerance=1e-6, seed=0,
        compiled=compiled, cache_kind="jax" if backend.startswith("jax") else None,
    )  # fmt: skip


FACTS = {"data": [], "threads": {}, "precision": {}, "sync": "none"}


def samples(of: Case, cold: list[float], warm: float, **changes: Any) -> list[Sample]:
    check = Sample(of.id, "check", 0, 0, "", "ok", facts=FACTS)
    phases = dict.fromkeys(PHASES, 0.1)
    timed = [
        Sample(
            of.id, "timed", index, index + 1, "", changes.get("status", {}).get(index, "ok"),
            reason="because",
            cold=ColdStart(total, phases, total - 0.8),
            warm=WarmCalls(changes.get("calls", {}).get(index, (warm,) * 40), 10, (warm * 10,) * 3),
            cache=CacheProof(of.cache, True, None, 0, 0, 0, 0),
        )
        for index, total in enumerate(cold)
    ]  # fmt: skip
    return [check, *timed]


def summaries(*pairs: tuple[Case, list[Sample]], processes: int = 6) -> dict[str, CaseSummary]:
    cases = [c for c, _ in pairs]
    found = summarise(cases, [s for _, group in pairs for s in group], processes)
    return {s.backend: s for s in found}


NUMPY, JIT = case("numpy"), case("jax-jit", compiled=True)


def test_medians_phases_and_break_even_follow_from_the_samples() -> None:
    found = summaries(
        (NUMPY, samples(NUMPY, [1.0] * 6, 0.010)), (JIT, samples(JIT, [2.0] * 6, 0.001))
    )
    jit = found["jax-jit"]
    assert jit.status == "ok" and jit.cold_seconds is not None and jit.cold_seconds.median == 2.0
    assert jit.phases_seconds == dict.fromkeys(PHASES, pytest.approx(0.1))
    assert jit.warm_call_seconds is not None and jit.warm_call_seconds.median == 0.001
    assert jit.throughput_calls_per_second is not None
    assert jit.throughput_calls_per_second.median == pytest.approx(1000.0)
    # 2 + 0.001 (n - 1) < 1 + 0.010 (n - 1) from n - 1 > 111.1 on
    assert jit.break_even_calls is not None and jit.break_even_calls.calls == 113
    assert found["numpy"].break_even_calls is None


@pytest.mark.parametrize("status", ["failed", "unproven", "crashed", "timeout", "out-of-memory"])
def test_one_bad_process_withholds_the_numbers_and_says_how_many(status: str) -> None:
    bad = samples(JIT, [1.0] * 6, 0.01, status={2: status, 4: status})
    found = summaries((JIT, bad))["jax-jit"]
    assert found.status == status and found.reason == "2 of 6 processes: because"
    assert found.cold_seconds is None and found.warm_call_seconds is None
    assert found.processes_ok == 4


def test_a_rival_whose_numbers_are_withheld_does_not_set_the_break_even() -> None:
    found = summaries(
        (NUMPY, samples(NUMPY, [1.0] * 6, 0.010, status={0: "failed"})),
        (JIT, samples(JIT, [2.0] * 6, 0.001)),
    )
    assert found["jax-jit"].break_even_calls is None


def test_processes_without_a_steady_state_are_counted_not_left_out() -> None:
    jump = (0.01,) * 80 + (0.02,) * 20  # changes in its last quarter
    calm = samples(JIT, [1.0] * 6, 0.01, calls={0: jump})
    one = summaries((JIT, calm))["jax-jit"].warm_call_seconds
    assert one is not None and one.n == 6
    most = samples(JIT, [1.0] * 6, 0.01, calls=dict.fromkeys(range(4), jump))
    found = summaries((NUMPY, samples(NUMPY, [1.0] * 6, 0.1)), (JIT, most))["jax-jit"]
    assert found.warm_call_seconds is None and found.break_even_calls is None
    assert found.warm_reason == "no steady state in 4 of 6 processes"
    assert found.throughput_calls_per_second is not None


def test_processes_at_two_speeds_have_no_median() -> None:
    """Half at 50 µs and half at 16 ms: no process had the median, 8 ms."""
    slow = dict.fromkeys((1, 3, 5), (0.016,) * 40)
    found = summaries(
        (NUMPY, samples(NUMPY, [1.0] * 6, 50e-6, calls=slow)), (JIT, samples(JIT, [2.0] * 6, 1e-4))
    )
    assert found["numpy"].warm_call_seconds is None and found["numpy"].warm_class == "inconsistent"
    reason = found["numpy"].warm_reason
    assert reason is not None and "320-fold: 0.05 ms to 16 ms" in reason
    assert found["jax-jit"].break_even_calls is None


def test_one_odd_process_does_not_remove_the_number() -> None:
    odd = samples(JIT, [1.0] * 6, 0.01, calls={2: (0.2,) * 40})
    found = summaries((JIT, odd))["jax-jit"].warm_call_seconds
    assert found is not None and found.median == 0.01 and found.high == 0.2


def test_with_too_few_processes_there_is_no_break_even() -> None:
    pairs = ((NUMPY, samples(NUMPY, [1.0] * 2, 0.01)), (JIT, samples(JIT, [2.0] * 2, 0.001)))
    assert summaries(*pairs, processes=2)["jax-jit"].break_even_calls is None


def test_fewer_processes_than_planned_are_incomplete() -> None:
    found = summaries((JIT, samples(JIT, [1.0] * 3, 0.01)))["jax-jit"]
    assert found.status == "incomplete" and found.cold_seconds is not None
    assert found.cold_seconds.n == 3 and found.cold_seconds.confidence == 0.75


def test_without_a_check_there_is_no_protocol_and_no_number() -> None:
    found = summaries((JIT, samples(JIT, [1.0] * 6, 0.01)[1:]))["jax-jit"]
    assert found.protocol is None and found.cold_seconds is None


def test_a_compiled_case_is_compared_under_its_own_cache_policy() -> None:
    eager_none, eager_warm = case("jax-eager"), case("jax-eager", cache="warm")
    jit_warm = case("jax-jit", compiled=True, cache="warm")
    cases = [eager_none, eager_warm, jit_warm]
    pairs = [(eager_none, 5.0), (eager_warm, 1.0), (jit_warm, 2.0)]
    every = [
        s for c, cold in pairs for s in samples(c, [cold] * 6, 0.01 if "eager" in c.id else 0.001)
    ]
    found = {s.case: s for s in summarise(cases, every, 6)}
    even = found[jit_warm.id].break_even_calls
    assert even is not None and even.calls == 113  # against 1.0 s, not against 5.0 s


def test_the_confidence_falls_with_every_rival() -> None:
    rivals = [case(f"rival-{i}") for i in range(3)]
    pairs = [(r, samples(r, [1.0] * 6, 0.01)) for r in rivals]
    even = summaries(*pairs, (JIT, samples(JIT, [2.0] * 6, 0.001)))["jax-jit"].break_even_calls
    assert even is not None
    assert even.confidence == pytest.approx(1 - 8 * 2 / 64)
    assert even.by_backend["rival-0"]["confidence"] == pytest.approx(1 - 4 * 2 / 64)
