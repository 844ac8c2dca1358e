"""Limits name what exceeds them, and never pass by accident."""

from __future__ import annotations

from typing import Any

import pytest
import trace_samples as samples

from firstlight.trace.findings.ci_limits import LimitError, Limits, after, exceeded
from firstlight.trace.read import phases


def test_nothing_is_exceeded_without_limits_or_at_the_limit() -> None:
    trace = samples.trace()
    assert (trace.compile_count, trace.recompiles) == (5, 2)
    assert not Limits() and exceeded(trace, Limits()) == ()
    at = Limits(5, 2, 1.75, forbid_compile_after_seconds=3.0, forbid_compile_after_results=6)
    assert at and exceeded(trace, at) == ()


def test_zero_is_a_limit() -> None:
    assert Limits(max_compiles=0)
    assert [e.limit for e in exceeded(samples.trace(), Limits(max_compiles=0))] == ["max-compiles"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_ttfr_seconds": float("nan")},
        {"max_ttfr_seconds": float("inf")},
        {"max_ttfr_seconds": -1.0},
        {"max_compiles": "a"},
        {"max_compiles": 1.5},
        {"max_recompiles": -1},
        {"max_recompiles": True},
    ],
)
def test_an_invalid_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LimitError, match=f"{next(iter(wrong))}.*not a limit"):
        Limits(**wrong)


def test_too_many_compiles_name_the_functions_most_often_compiled_first() -> None:
    (excess,) = exceeded(samples.trace(), Limits(max_compiles=4))
    assert (excess.allowed, excess.found) == (4, 5)
    assert excess.sentence == "5 compiles, 4 allowed"
    assert excess.offenders[0].startswith("step (") and "3 compiles" in excess.offenders[0]
    assert "train.py:12" in excess.offenders[0] and "train.py:40" in excess.offenders[0]


def test_recompiles_come_with_signature_and_reason_and_without_operations_of_jax() -> None:
    library = samples.function("add", samples.again(1.0, (3,)), library=True)
    trace = samples.trace(*samples.trace().functions, library)
    assert trace.recompiles == 2
    (excess,) = exceeded(trace, Limits(max_recompiles=1))
    assert len(excess.offenders) == 2
    assert "called from" in excess.offenders[0] and "f32[8,4] → f32[9,4]" in excess.offenders[0]


def test_a_missing_first_result_exceeds_the_limit() -> None:
    trace = samples.trace(time_to_first_result_seconds=None)
    (excess,) = exceeded(trace, Limits(max_ttfr_seconds=100))
    assert excess.found is None


def test_a_late_first_result_names_what_came_before_it_and_nothing_else() -> None:
    trace = samples.trace()
    (excess,) = exceeded(trace, Limits(max_ttfr_seconds=1.0))
    assert excess.found == 1.75
    (process,) = trace.processes
    until = phases.until(process, 1.75)
    longest = max(until, key=lambda kind: until[kind])
    assert excess.offenders[0].startswith(f"{phases.name_of(longest)}: ")
    # The second and the third of three compiles began at 2 s and 3 s.
    named = [line.partition("(")[0] for line in excess.offenders if "called from" in line]
    early = [
        f.name for f in trace.functions for c in f.compiles if c.compiled and c.begin_seconds < 1.75
    ]
    assert sorted(named) == sorted(early) and named.count("step") == 1


def test_late_compiles_by_time_and_by_results_read() -> None:
    (by_time,) = exceeded(samples.trace(), Limits(forbid_compile_after_seconds=1.5))
    assert by_time.found == 2 and "f32[9,4]" in by_time.offenders[0]
    (by_results,) = exceeded(samples.trace(), Limits(forbid_compile_after_results=5))
    assert by_results.found == 1 and "f32[10,4]" in by_results.offenders[0]


def test_a_log_without_counts_of_results_exceeds_the_limit() -> None:
    old = samples.function("old", samples.compiled(results_before=None))
    (excess,) = exceeded(samples.trace(old), Limits(forbid_compile_after_results=1000))
    assert excess.found is None


def test_many_offenders_are_cut_and_counted() -> None:
    functions = [samples.function(f"f{n}") for n in range(25)]
    (excess,) = exceeded(samples.trace(*functions), Limits(max_compiles=1))
    assert len(excess.offenders) == 11 and excess.offenders[-1] == "and 15 more"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("30s", {"forbid_compile_after_seconds": 30.0}),
        ("1.5s", {"forbid_compile_after_seconds": 1.5}),
        ("250ms", {"forbid_compile_after_seconds": 0.25}),
        ("2min", {"forbid_compile_after_seconds": 120.0}),
        ("100", {"forbid_compile_after_results": 100}),
        ("0", {"forbid_compile_after_results": 0}),
    ],
)
def test_a_moment_is_a_time_or_a_number_of_results(text: str, found: dict[str, float]) -> None:
    assert after(text) == found


@pytest.mark.parametrize("text", ["", "s", "soon", "-3", "1.5", "nan", "inf", "infs", "3h"])
def test_an_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(LimitError, match=r"seconds|results"):
        after(text)
