"""The sentences of the answer, for every way a comparison can go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from document import parse
from synthetic import Plan, make_run

from firstlight.records import BreakEven, CaseSummary, Estimate, Run, WarmEstimate
from firstlight.report.admission import admit
from firstlight.report.cheapest import cheapest_spans, policy_groups
from firstlight.report.html import render


def answer_text(
    *plans: Plan,
    cold: dict[str, tuple[float, float, float]] | None = None,
    warm: dict[str, float] | None = None,
    **changes: dict[str, Any],
) -> str:
    """The text of the answer; times and other fields of a case are given by backend."""
    run, samples = made(*plans, cold=cold, warm=warm, **changes)
    (card,) = parse(render(run, samples)).all("article")
    return card.text.replace("\u202f", " ")


def made(
    *plans: Plan,
    cold: dict[str, tuple[float, float, float]] | None = None,
    warm: dict[str, float] | None = None,
    **changes: dict[str, Any],
) -> tuple[Run, list[Any]]:
    run, samples = make_run(plans)
    cases = []
    for case in run.cases:
        fields: dict[str, Any] = {}
        if cold and case.backend in cold:
            fields["cold_seconds"] = Estimate(*cold[case.backend], 30, 0.95)
        if warm and case.backend in warm:
            w = warm[case.backend]
            fields["warm_call_seconds"] = WarmEstimate(w, w * 0.99, w * 1.01, 30, 0.95)
        cases.append(replace(case, **fields, **changes.get(case.backend.replace("-", "_"), {})))
    return replace(run, cases=tuple(cases)), samples


NUMPY, JIT, EAGER = (Plan("mlp", "small", b) for b in ("numpy", "jax-jit", "torch-eager"))
COLD = {"numpy": (0.21, 0.20, 0.22), "jax-jit": (0.9, 0.88, 0.93), "torch-eager": (1.4, 1.3, 1.5)}
WARM = {"numpy": 1e-3, "jax-jit": 4e-4, "torch-eager": 8e-4}


def even(calls: int | str, low: int | str, high: int | str, **others: Any) -> BreakEven:
    return BreakEven(calls, low, high, 0.95, "numpy", {"numpy": {"calls": calls}, **others})


def test_first_fastest_and_break_even_have_one_sentence_each() -> None:
    words = answer_text(
        NUMPY, JIT, cold=COLD, warm=WARM, jax_jit={"break_even_calls": even(1243, 1100, 1400)}
    )
    assert "numpy answers first, after 210 ms [200, 220]; jax-jit is the fastest once warm" in words
    assert "jax-jit overtakes numpy after 1 240 calls (1 100–1 400)." in words


def test_of_several_uncompiled_backends_the_one_overtaken_last_is_named() -> None:
    other = {"torch-eager": {"calls": 30, "low": 20, "high": 40}}
    words = answer_text(NUMPY, EAGER, JIT, jax_jit={"break_even_calls": even(51, 50, 52, **other)})
    assert "overtakes the last uncompiled backend (numpy) after 51 calls (50–52)." in words


def test_never_is_stated_with_the_backends_that_are_overtaken() -> None:
    other = {"torch-eager": {"calls": 310}}
    never = even("never", "never", "never", **other)
    words = answer_text(NUMPY, EAGER, JIT, jax_jit={"break_even_calls": never})
    assert "jax-jit never overtakes numpy (it is ahead of torch-eager after 310 calls)." in words


def test_never_with_an_interval_that_disagrees_says_so() -> None:
    words = answer_text(NUMPY, JIT, jax_jit={"break_even_calls": even("never", 40000, "never")})
    assert "never overtakes numpy, though the interval reaches down to 40 000 calls." in words


def test_a_break_even_whose_interval_has_no_end_says_so() -> None:
    words = answer_text(NUMPY, JIT, jax_jit={"break_even_calls": even(31, 28, "never")})
    assert "after 31 calls (28 to never)." in words


def test_an_interval_of_low_confidence_says_how_low() -> None:
    low = replace(even(31, 28, 40), confidence=0.75)
    assert "(28–40 at 75 %)" in answer_text(NUMPY, JIT, jax_jit={"break_even_calls": low})
    none = replace(low, confidence=0.0)
    assert "(too few processes for an interval)" in answer_text(
        NUMPY, JIT, jax_jit={"break_even_calls": none}
    )


def test_a_median_of_too_few_processes_says_how_sure_its_interval_is() -> None:
    sure = {"cold_seconds": Estimate(0.21, 0.2, 0.22, 2, 0.5)}
    assert "210 ms [200, 220] at 50 %" in answer_text(NUMPY, JIT, numpy=sure)


def test_a_compiled_case_that_answers_first_has_nothing_to_pay_back() -> None:
    words = answer_text(NUMPY, JIT, jax_jit={"break_even_calls": even(1, 1, 1)})
    assert "jax-jit answers before numpy, so compiling has nothing to pay back." in words


def test_overlapping_intervals_are_not_ranked() -> None:
    close = {"numpy": (0.21, 0.20, 0.22), "torch-eager": (0.215, 0.21, 0.23)}
    same = {"numpy": 1e-3, "torch-eager": 1.005e-3}
    words = answer_text(NUMPY, EAGER, cold=close, warm=same)
    assert "numpy (210 ms [200, 220]) and torch-eager (215 ms [210, 230]) answer first:" in words
    assert "Once warm, numpy" in words and "cannot be told apart: their intervals overlap" in words
    assert "None of them compiles." in words


def test_a_single_backend_is_not_called_first_or_fastest() -> None:
    words = answer_text(NUMPY, cold=COLD, warm=WARM)
    assert "numpy is the only backend with a result: first result after 210 ms" in words
    assert "answers first" not in words and "fastest" not in words


def test_without_a_quotable_result_only_the_reasons_are_shown() -> None:
    words = answer_text(
        NUMPY,
        JIT,
        numpy={"status": "failed", "reason": "wrong"},
        jax_jit={"status": "timeout", "reason": "too slow"},
    )
    assert "No backend has a result that may be quoted." in words
    assert "Not compared: numpy (failed), jax-jit (timeout)." in words
    assert "answers first" not in words


@pytest.mark.parametrize("status", ["unproven", "incomplete", "crashed", "out-of-memory"])
def test_a_case_that_is_not_valid_is_never_ranked(status: str) -> None:
    fast = {"numpy": (0.21, 0.20, 0.22), "jax-jit": (0.01, 0.01, 0.01)}
    words = answer_text(NUMPY, JIT, cold=fast, jax_jit={"status": status})
    assert "numpy is the only backend with a result" in words
    assert f"Not compared: jax-jit ({status})." in words


def test_a_warm_cache_is_not_compared_with_an_empty_one() -> None:
    run, samples = make_run([NUMPY, JIT, replace(JIT, cache="warm")])
    found = policy_groups(admit(run, samples)[0])
    labels = [(c.policy, sorted(e.case for e in c.entrants)) for c in found]
    assert labels == [
        ("none", ["mlp[small]/jax-jit/none", "mlp[small]/numpy/none"]),
        ("warm", ["mlp[small]/jax-jit/warm", "mlp[small]/numpy/none"]),
    ]


@pytest.mark.parametrize(
    ("filled", "words"),
    [
        (Estimate(0.822, 0.586, 1.64, 6, 0.97), "is not known, because with so few processes"),
        (Estimate(0.6, 0.55, 0.69, 6, 0.97), "brings the first result of jax-jit from 773 ms"),
        (Estimate(1.5, 1.2, 1.6, 6, 0.97), "makes the first result of jax-jit slower: 773 ms"),
    ],
)
def test_a_filled_cache_is_claimed_to_help_only_if_the_intervals_do_not_overlap(
    filled: Estimate, words: str
) -> None:
    """It said "brings the first result from 773 [703, 1130] to 822 [586, 1640]"."""
    run, samples = make_run([JIT, replace(JIT, cache="warm")])
    cold = {"none": Estimate(0.773, 0.703, 1.13, 6, 0.97), "warm": filled}
    cases = tuple(replace(c, cold_seconds=cold[c.cache]) for c in run.cases)
    (card,) = parse(render(replace(run, cases=cases), samples)).all("article", class_="answer")
    assert words in card.text.replace("\u202f", " ")


def test_a_policy_whose_own_case_is_not_valid_has_no_ranking() -> None:
    run, samples = make_run([NUMPY, JIT, replace(JIT, cache="warm")])
    cases = [replace(c, status="unproven") if c.cache == "warm" else c for c in run.cases]
    page = render(replace(run, cases=tuple(cases)), samples)
    (card,) = parse(page).all("article")
    assert "No result with this cache may be quoted. Not compared: jax-jit/warm" in card.text
    assert len(card.all("svg", class_="ribbon")) == 1


def test_the_ribbon_is_the_lower_envelope_of_the_totals() -> None:
    """Against the brute force: the cheapest case at each number of calls."""
    cold = {"numpy": (0.2, 0.2, 0.2), "torch-eager": (0.5, 0.5, 0.5), "jax-jit": (2.0, 2.0, 2.0)}
    warm = {"numpy": 1e-2, "torch-eager": 4e-3, "jax-jit": 1e-3}
    run, samples = made(NUMPY, EAGER, JIT, cold=cold, warm=warm, jax_jit={"break_even_calls": None})
    (group,) = policy_groups(admit(run, samples)[0])
    found = cheapest_spans(group)

    def total(case: CaseSummary, calls: int) -> float:
        assert case.cold_seconds and case.warm_call_seconds
        return case.cold_seconds.median + (calls - 1) * case.warm_call_seconds.median

    for calls in range(1, 2000):
        cheapest = min(run.cases, key=lambda c: total(c, calls))
        ruling = [r for r in found if r.first_call <= calls][-1]
        assert total(ruling.case, calls) == pytest.approx(total(cheapest, calls), rel=1e-12)


def test_no_case_is_the_fastest_while_one_has_no_warm_number() -> None:
    words = answer_text(
        NUMPY,
        JIT,
        numpy={"warm_call_seconds": None, "warm_reason": "no steady state in 4 of 6 processes"},
        jax_jit={"break_even_calls": None},
    )
    assert "fastest" not in words
    assert "numpy has no warm number (no steady state in 4 of 6 processes)" in words
    assert "which is faster per call, and from which call compiling pays, is not known" in words
    assert "least total time" not in words  # nor is a ribbon drawn


def test_a_case_in_tiers_states_from_which_call_on_compiling_is_faster() -> None:
    tiers = Plan("mlp", "small", "jax-jit", cache="tiered")
    words = answer_text(JIT, tiers, jax_jit={"counts": {"numpy_break_even_calls": 445}})
    assert words.count("From 445 calls on, compiling takes less than NumPy alone.") == 1
