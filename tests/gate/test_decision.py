from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from firstlight.compare.quantities import GATED
from firstlight.compare.verdicts import Rule, judge
from firstlight.gate import decision
from firstlight.gate.decision import BEYOND_DOUBT, LOOKS, GateError, GateReport, Rules
from firstlight.records import CacheProof, ColdStart, Sample, WarmCalls, to_json
from firstlight.statistics.calibration import AAResult, Thresholds
from firstlight.statistics.effects import Effect

A, B, C = "a[small]/jax-jit/none", "b[small]/jax-jit/none", "c[small]/numpy/none"
Sides = tuple[list[Sample], list[Sample]]


def decide(base: list[Sample], head: list[Sample], alpha: float = 0.05, **rules: Any) -> GateReport:
    return decision.decide(base, head, Rules(**rules), alpha)


def sample(
    case: str,
    index: int,
    *,
    compile_seconds: float | None = 0.5,
    rest: float = 0.5,
    call: float = 1e-3,
    counts: Mapping[str, int | None] | None = None,
) -> Sample:
    phases = {"import": rest, "compile": compile_seconds}
    total = rest + (compile_seconds or 0.0)
    return Sample(
        case=case,
        kind="timed",
        index=index,
        order=index,
        started_at="",
        status="ok",
        cold=ColdStart(total, phases, 0.0),
        warm=WarmCalls((call,) * 8, 4, (4 * call,) * 3),
        counts={"compiles": 3, "warm_compiles": 0, "traces": 9} if counts is None else counts,
    )


def sides(
    *cases: str,
    rounds: int = 12,
    noise: float = 0.02,
    seed: int = 0,
    factors: Mapping[str, tuple[float, float]] | None = None,
) -> Sides:
    """Both sides in interleaved rounds; `factors` apply to compile and warm call of a case."""
    generator = np.random.default_rng(seed)
    found: Sides = ([], [])
    for case in cases:
        slower = (factors or {}).get(case, (1.0, 1.0))
        for index in range(rounds):
            drift = math.exp(generator.normal(0, 0.2))
            for side, (on_compile, on_call) in zip(found, ((1.0, 1.0), slower), strict=True):
                c, r, w = drift * np.exp(generator.normal(0, noise, 3))
                side.append(
                    sample(
                        case,
                        index,
                        compile_seconds=0.5 * c * on_compile,
                        rest=0.5 * r,
                        call=1e-3 * w * on_call,
                    )
                )
    return found


def only(report: GateReport, quantity: str, case: str = A) -> str:
    (found,) = [c for c in report.comparisons if (c.case, c.quantity) == (case, quantity)]
    return found.verdict


def counted(side: list[Sample], case: str, **counts: int | None) -> list[Sample]:
    return [replace(s, counts={**s.counts, **counts}) if s.case == case else s for s in side]


# --- pass and regression --------------------------------------------------------------------------


def test_equal_sides_pass() -> None:
    report = decide(*sides(A, B))
    assert (report.verdict, report.exit_code, report.reasons) == ("pass", 0, ())
    assert report.rounds == 12 and not report.undecided


@pytest.mark.parametrize(
    ("factors", "quantity"), [((1.1, 1.0), "compile"), ((1.0, 1.1), "warm_call_seconds")]
)
def test_ten_percent_more_is_a_regression_of_what_was_slowed(
    factors: tuple[float, float], quantity: str
) -> None:
    report = decide(*sides(A, B, factors={A: factors}))
    assert (report.verdict, report.exit_code) == ("regression", 1)
    assert only(report, quantity) == "regression"
    assert only(report, quantity, B) == "same"
    assert any(reason.startswith(f"{A}: {quantity} got slower: +") for reason in report.reasons)


def test_an_improvement_passes_and_is_reported() -> None:
    report = decide(*sides(A, factors={A: (1.0, 0.8)}))
    assert (report.verdict, only(report, "warm_call_seconds")) == ("pass", "improvement")
    assert any("faster" in reason for reason in report.reasons)


def test_a_speed_up_that_is_not_significant_is_inconclusive_but_does_not_block() -> None:
    base, head = sides(A, noise=0.002, rounds=6, factors={A: (1.0, 0.6)})
    report = decide(base, head, gated=("cold_seconds", "warm_call_seconds"))
    (found,) = [c for c in report.comparisons if c.quantity == "warm_call_seconds"]
    assert found.effect.high < 0.7 and found.p_adjusted == pytest.approx(2 * 2 / 2**6)
    assert found.verdict == "inconclusive"
    assert found.reason == (
        "faster, but 6 rounds can never be significant in 2 comparisons: it takes 7 or more"
    )
    assert (report.verdict, report.undecided) == ("pass", ())


def test_a_significant_change_below_the_minimum_effect_passes() -> None:
    base, head = sides(A, noise=0.002, rounds=24, factors={A: (1.02, 1.0)})
    report = decide(base, head)
    (found,) = [c for c in report.comparisons if c.quantity == "compile"]
    assert found.p_adjusted < 0.05
    assert (report.verdict, found.verdict) == ("pass", "same")
    assert "within the threshold" in (found.reason or "")
    assert decide(base, head, minimum_effect=0.005).verdict == "regression"


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        # ratio, low, high, confidence, p, n, paired
        (Effect(1.054, 1.02, 1.09, 0.95, 1e-4, 12, True), "but perhaps only +2.0 %"),
        (Effect(0.95, 0.92, 0.98, 0.95, 1e-4, 12, True), "but perhaps only −2.0 %"),
        (Effect(1.02, 1.01, 1.03, 0.95, 1e-4, 12, True), "within the threshold of +3.0 %"),
        (Effect(0.98, 0.97, 0.99, 0.95, 1e-4, 12, True), "within the threshold of −2.9 %"),
    ],
)
def test_a_significant_change_that_does_not_count_has_a_reason(effect: Effect, words: str) -> None:
    """It was: "+5.4 %, within the threshold of +3.0 %"."""
    verdict, reason = judge(effect, 1e-4, 1.03, Rule(0.05, 0.03, 0.10))
    assert verdict == "same" and reason is not None and words in reason


def test_the_lower_end_of_the_interval_must_exceed_the_limit_not_the_estimate() -> None:
    base, head = sides(A, noise=0.05, rounds=24, factors={A: (1.05, 1.0)})
    report = decide(base, head, minimum_effect=0.06, resolution=1.0)
    (found,) = [c for c in report.comparisons if c.quantity == "compile"]
    assert found.effect.low < 1.06 < found.effect.ratio and found.p_adjusted < 0.05
    assert found.verdict == "same"


def test_pairs_are_made_by_round_not_by_place() -> None:
    """A drift of 20 % between rounds hides 10 %, unless the values of a round are paired."""
    base, head = sides(A, factors={A: (1.1, 1.0)})
    assert decide(base, head[::-1]).verdict == "regression"
    shifted = [replace(s, index=(s.index + 1) % 12) for s in head]
    assert decide(base, shifted).verdict != "regression"


def test_an_unfinished_round_is_left_out() -> None:
    base, head = sides(A)
    report = decide(base, head[:-1])
    assert report.verdict == "pass" and report.rounds == 11


# --- Holm, thresholds, quantities -----------------------------------------------------------------


def test_p_values_are_adjusted_over_all_gated_comparisons_of_all_cases() -> None:
    base, head = sides(A, B, C, factors={A: (1.0, 1.1)})
    alone = decide([s for s in base if s.case == A], [s for s in head if s.case == A])
    together = decide(base, head)
    p = {
        report: next(
            c.p_adjusted
            for c in found.comparisons
            if (c.case, c.quantity) == (A, "warm_call_seconds")
        )
        for report, found in (("alone", alone), ("together", together))
    }
    assert p["together"] == pytest.approx(3 * p["alone"])
    gated = [c for c in together.comparisons if c.gated]
    assert len(gated) == 9 and {c.quantity for c in gated} == set(GATED)


def test_a_calibrated_threshold_beyond_the_effect_keeps_the_gate_quiet() -> None:
    base, head = sides(A, factors={A: (1.0, 1.1)})
    noisy = Thresholds("here", 0.05).with_results(
        [AAResult(A, "warm_call_seconds", 1.2, 12, str(i)) for i in range(19)]
    )
    assert decide(base, head).verdict == "regression"
    report = decide(base, head, thresholds=noisy)
    (found,) = [c for c in report.comparisons if c.quantity == "warm_call_seconds"]
    assert found.threshold == 1.2 and "19 A/A ratios of this case" in found.threshold_source
    assert report.verdict == "inconclusive"  # 10 % cannot be excluded either
    calm = Thresholds("here", 0.05).with_results(
        [AAResult(A, "warm_call_seconds", 1.04, 12, str(i)) for i in range(19)]
    )
    assert decide(base, head, thresholds=calm).verdict == "regression"


def test_a_threshold_below_the_minimum_effect_does_not_lower_it() -> None:
    tight = Thresholds("here", 0.05).with_results(
        [AAResult(A, "compile", 1.001, 12, str(i)) for i in range(19)]
    )
    report = decide(*sides(A), thresholds=tight)
    assert {c.threshold for c in report.comparisons} == {1.03}


def test_without_a_calibration_the_report_says_so() -> None:
    assert "firstlight calibrate" in decide(*sides(A)).calibration


def test_a_short_phase_is_reported_but_does_not_decide() -> None:
    base, head = sides(A, factors={A: (1.5, 1.0)})
    # Only 2 % of the cold start: half as much again is 1 % of what a user waits for.
    small = [
        [
            replace(s, cold=replace(s.cold, total_seconds=50 * s.cold.phases_seconds["compile"]))
            for s in side
        ]
        for side in (
            base,
            [
                replace(h, cold=replace(h.cold, total_seconds=b.cold.total_seconds))
                for b, h in zip(base, head, strict=True)
            ],
        )
    ]
    by_default = decide(*small)
    (found,) = [c for c in by_default.comparisons if c.quantity == "compile"]
    assert not found.gated and found.verdict == "regression"
    asked = decide(*small, gated=("compile",))
    assert asked.verdict == "regression"


def test_other_phases_are_gated_when_asked_for() -> None:
    base, head = sides(A)
    slow = [
        replace(s, cold=replace(s.cold, phases_seconds={**s.cold.phases_seconds, "import": 0.7}))
        for s in head
    ]
    steady = [
        replace(s, cold=replace(s.cold, phases_seconds={**s.cold.phases_seconds, "import": 0.6}))
        for s in base
    ]
    assert decide(steady, slow).verdict == "pass"
    assert decide(steady, slow, gated=(*GATED, "import")).verdict == "regression"


# --- inconclusive ---------------------------------------------------------------------------------


def test_noise_that_could_hide_ten_percent_is_inconclusive_and_names_the_case() -> None:
    calm, wild = sides(A), sides(B, noise=0.4, seed=4)
    report = decide(calm[0] + wild[0], calm[1] + wild[1])
    assert (report.verdict, report.exit_code, report.undecided) == ("inconclusive", 3, (B,))
    assert any("too noisy" in reason for reason in report.reasons)


def test_five_rounds_are_too_few_for_any_verdict() -> None:
    report = decide(*sides(A, rounds=5, noise=0.001, factors={A: (2.0, 2.0)}))
    assert report.verdict == "inconclusive"
    assert "too few" in report.reasons[0]


def test_a_control_case_that_moves_makes_the_gate_inconclusive() -> None:
    base, head = sides(A, B, factors={A: (1.2, 1.0), B: (1.0, 1.2)})
    assert decide(base, head).verdict == "regression"
    report = decide(base, head, control=B)
    assert (report.verdict, report.exit_code, report.control_moved) == ("inconclusive", 3, True)
    assert "control case moved" in report.reasons[0]
    faster = sides(A, B, factors={B: (1.0, 0.8)})
    assert decide(*faster, control=B).verdict == "inconclusive"


def test_a_control_case_that_does_not_move_has_no_effect() -> None:
    base, head = sides(A, B, factors={A: (1.2, 1.0)})
    report = decide(base, head, control=B)
    assert (report.verdict, report.control_moved) == ("regression", False)


def test_a_control_case_that_was_not_measured_is_refused() -> None:
    with pytest.raises(GateError, match="was not measured"):
        decide(*sides(A), control="x")


def two_speeds(side: list[Sample]) -> list[Sample]:
    return [
        replace(s, warm=replace(s.warm, call_seconds=(0.5,) * 8)) if s.index % 2 else s
        for s in side
    ]


def test_processes_of_the_base_at_two_speeds_are_reported_and_not_judged() -> None:
    base, head = sides(A)
    report = decide(two_speeds(base), two_speeds(head))
    assert report.verdict == "pass"
    assert any("warm_call_seconds is not judged" in reason for reason in report.reasons)
    alone = decide(two_speeds(base), two_speeds(head), gated=("warm_call_seconds",))
    assert (alone.verdict, alone.reasons[0]) == ("inconclusive", "No time could be judged.")


def test_a_control_alone_judges_nothing() -> None:
    assert decide(*sides(A), control=A).verdict == "infrastructure"


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compiles", "warm_compiles", "equations"])
def test_one_more_compile_or_equation_is_a_regression_even_with_equal_times(name: str) -> None:
    base, head = sides(A, noise=0.4)
    report = decide(counted(base, A, **{name: 3}), counted(head, A, **{name: 4}))
    assert report.verdict == "regression"
    assert report.reasons[0] == f"{A}: {name}: 3 before, 4 now."
    off = decide(counted(base, A, **{name: 3}), counted(head, A, **{name: 4}), exact_counts=False)
    assert off.verdict != "regression"


def test_counts_that_are_left_out_have_no_verdict_anywhere() -> None:
    base, head = sides(A)
    report = decide(base, counted(head, A, compiles=9), exact_counts=False)
    assert (report.verdict, report.counts) == ("pass", ())
    assert not any("compiles" in reason for reason in report.reasons)


def test_fewer_compiles_pass_and_are_reported_as_unexplained() -> None:
    base, head = sides(A)
    report = decide(base, counted(head, A, compiles=2))
    assert report.verdict == "pass"
    assert any("3 before, 2 now, unexplained" in reason for reason in report.reasons)


def test_cache_misses_are_counted_from_requests_and_hits() -> None:
    def with_hits(side: list[Sample], hits: int) -> list[Sample]:
        return [replace(s, cache=CacheProof("warm", True, None, 3, 3, 3, hits)) for s in side]

    base, head = sides(A)
    report = decide(with_hits(base, 3), with_hits(head, 1))
    assert report.verdict == "regression"
    assert any("cache_misses: 0 before, 2 now" in reason for reason in report.reasons)


def test_traces_are_reported_but_do_not_decide() -> None:
    base, head = sides(A)
    report = decide(base, counted(head, A, traces=20))
    assert report.verdict == "pass"
    (found,) = [c for c in report.counts if c.name == "traces"]
    assert (found.verdict, found.gated) == ("regression", False)


def test_a_count_that_varies_is_a_regression_only_if_it_clearly_grew() -> None:
    def alternate(side: list[Sample], *values: int) -> list[Sample]:
        return [replace(s, counts={"compiles": values[s.index % len(values)]}) for s in side]

    base, head = sides(A)
    overlap = decide(alternate(base, 3, 4), alternate(head, 4, 5))
    assert (overlap.verdict, overlap.counts[0].verdict) == ("pass", "inconclusive")
    apart = decide(alternate(base, 3, 4), alternate(head, 5, 6))
    assert (apart.verdict, apart.counts[0].base) == ("regression", None)


def test_counts_outrank_a_control_that_moved() -> None:
    base, head = sides(A, B, factors={B: (1.0, 1.2)})
    report = decide(base, counted(head, A, compiles=4), control=B)
    assert report.verdict == "regression"


def test_a_control_whose_counts_change_was_touched_by_the_change() -> None:
    base, head = sides(A, B)
    report = decide(base, counted(head, B, compiles=4), control=B)
    assert (report.verdict, report.control_moved) == ("inconclusive", True)


# --- broken cases ---------------------------------------------------------------------------------


def broken(side: list[Sample], case: str, status: str = "failed") -> list[Sample]:
    bad = Sample(case, "timed", 3, 3, "", status, reason="the result is wrong")
    return [bad if (s.case, s.index) == (case, 3) else s for s in side]


@pytest.mark.parametrize("status", ["failed", "crashed", "timeout", "out-of-memory"])
def test_a_case_that_breaks_on_the_head_alone_is_a_regression(status: str) -> None:
    base, head = sides(A, B)
    report = decide(base, broken(head, A, status))
    assert (report.verdict, report.exit_code, report.broken_by_head) == ("regression", 1, (A,))
    assert f"broken on one side: head {status} in 1 of 12" in report.broken[A]
    assert A in report.reasons[0] and "the result is wrong" in report.reasons[0]
    assert all(c.case == B for c in report.comparisons)


@pytest.mark.parametrize("status", ["failed", "unproven", "crashed", "timeout"])
def test_a_case_that_breaks_on_the_base_alone_is_inconclusive(status: str) -> None:
    base, head = sides(A, B)
    report = decide(broken(base, A, status), head)
    assert (report.verdict, report.exit_code, report.broken_by_head) == ("inconclusive", 3, ())
    assert f"broken on one side: base {status}" in report.broken[A]
    assert "nothing to compare" in report.broken[A]


def test_a_cache_label_that_is_not_proven_on_the_head_proves_nothing() -> None:
    base, head = sides(A, B)
    report = decide(base, broken(head, A, "unproven"))
    assert (report.verdict, report.broken_by_head) == ("inconclusive", ())


def test_a_control_that_moved_excuses_a_time_limit_but_no_wrong_result() -> None:
    base, head = sides(A, B, factors={B: (1.0, 1.2)})
    assert decide(base, broken(head, A, "timeout"), control=B).verdict == "inconclusive"
    assert decide(base, broken(head, A, "failed"), control=B).verdict == "regression"


def test_a_control_that_breaks_on_the_head_is_not_blamed_on_the_change() -> None:
    base, head = sides(A, B)
    assert decide(base, broken(head, B, "crashed"), control=B).verdict == "inconclusive"


def test_a_side_that_was_not_timed_because_the_other_failed_is_not_broken() -> None:
    good = Sample(A, "check", 0, 0, "", "ok")
    bad = replace(good, status="failed", reason="off by 3")
    assert decide([good], [bad]).verdict == "regression"
    assert decide([bad], [good]).verdict == "inconclusive"
    assert decide([bad], [bad]).verdict == "infrastructure"
    assert decide([good], [good]).verdict == "infrastructure"  # no time for a single round


def test_a_case_that_breaks_on_both_sides_is_infrastructure() -> None:
    base, head = sides(A, B)
    report = decide(broken(base, A), broken(head, A))
    assert (report.verdict, report.exit_code) == ("infrastructure", 2)


def test_a_proven_regression_outranks_a_broken_case() -> None:
    base, head = sides(A, B, factors={B: (1.2, 1.0)})
    assert decide(broken(base, A), broken(head, A)).verdict == "regression"


def test_a_failed_check_breaks_its_case() -> None:
    base, head = sides(A, B)
    check = Sample(A, "check", 0, 0, "", "failed", reason="off by 3")
    report = decide([*base], [check, *[s for s in head if s.case != A]])
    assert report.verdict == "regression" and "off by 3" in report.broken[A]


def test_nothing_measured_is_infrastructure() -> None:
    report = decide([], [])
    assert (report.verdict, report.exit_code) == ("infrastructure", 2)


# --- rates ----------------------------------------------------------------------------------------


def gate(seed: int, **options: object) -> GateReport:
    """A gate as the command runs it: up to the first look that decides."""
    report = None
    base, head = sides(A, B, rounds=LOOKS[-1].rounds, seed=seed, **options)  # type: ignore[arg-type]
    for look in LOOKS:
        now = [[s for s in side if s.index < look.rounds] for side in (base, head)]
        report = decide(*now, alpha=look.alpha)
        if report.is_settled:
            break
    assert report is not None
    return report


def test_equal_sides_fail_less_often_than_stated_over_all_looks() -> None:
    """α is 5 % for both directions; minimum effect and interval reduce it much further."""
    verdicts = [gate(seed, noise=0.15).verdict for seed in range(60)]
    assert verdicts.count("regression") <= 3  # 2.5 % of 60, and two standard deviations


def test_stopping_at_a_regression_beyond_doubt_adds_next_to_no_false_alarms() -> None:
    """A look uses its share of α; to end the gate early takes a much smaller p-value."""
    early = sum(min(look.alpha, BEYOND_DOUBT) for look in LOOKS[:-1]) / 2
    assert early < 0.0031
    base, head = sides(A, B, noise=0.15, seed=1)
    noisy = decide(base, head, alpha=0.02)
    assert noisy.undecided and not noisy.is_settled
    claims = replace(noisy.comparisons[0], gated=True, verdict="regression", p_adjusted=0.01)
    claimed = replace(noisy, verdict="regression", comparisons=(claims,))
    assert not claimed.is_settled
    sure = replace(claims, p_adjusted=1e-27)
    assert replace(claimed, comparisons=(sure,)).is_settled


def test_the_shares_of_the_looks_add_up_to_five_percent() -> None:
    assert sum(look.alpha for look in LOOKS) == pytest.approx(0.05)
    assert [look.rounds for look in LOOKS] == sorted({look.rounds for look in LOOKS})
    # The first look can reject at all, with every gated comparison of the quick suite's 13 cases.
    assert 3 * 13 * 2 / 2 ** LOOKS[0].rounds < LOOKS[0].alpha


def test_a_report_is_plain_json() -> None:
    report = decide(*sides(A, B, factors={A: (1.2, 1.0)}), control=B)
    plain = json.loads(json.dumps(to_json(report), allow_nan=False))
    assert plain["schema"] == "firstlight.gate-report"
    assert plain["comparisons"][0]["effect"]["paired"] is True
    assert plain["exit_code"] == 1
