"""Interleaved measuring, with a worker whose times are decided by the test."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from firstlight.gate.decision import Look, Rules, for_decision
from firstlight.gate.job import measure_and_judge, with_notes
from firstlight.gate.measuring import PairedCase, PairedMeasurement, complete_rounds, paired_rounds
from firstlight.gate.planning import looks_for, require_decidable
from firstlight.gate.selection import CONTROL, control_case
from firstlight.gate.sides import Side
from firstlight.measure.case_selection import SAMPLING, SelectionError, make_case
from firstlight.records import REPEATS, Sample, to_json
from firstlight.workloads.catalog import registered

sys.path.insert(0, str(Path(__file__).parent))
from fake_worker import FakeWorker  # type: ignore[import-not-found]

SIDES = (Side("base", "base"), Side("head", "head"))
SETTINGS = replace(SAMPLING["quick"], processes=12, seed=7)


def case(workload: str = "matmul") -> PairedCase:
    backends, workloads = registered()
    made = make_case(workloads[workload], "small", backends["numpy"], "none")
    return PairedCase(made, made)


def noise(number: int) -> float:
    """Within 1 %, all different, and independent of the side."""
    return 1 + ((number * 7919 + 13) % 101) / 101 / 100


def times(head: float = 1.0) -> Callable[[str, str, int], tuple[float, float]]:
    """One second cold and one millisecond warm; the head takes `head` times as long."""

    def give(side: str, kind: str, number: int) -> tuple[float, float]:
        # Each side has its own noise, and neither is slower on average over the rounds.
        shift = noise(number if side != "head" else 11 - number)
        factor = head if side == "head" else 1.0
        return factor * shift, factor * shift * 1e-3

    return give


class Kept:
    """Collects the samples of both sides."""

    def __init__(self) -> None:
        self.samples: dict[str, list[Sample]] = {"base": [], "head": []}

    def keepers(self) -> dict[str, Callable[[Sample], None]]:
        return {side: found.append for side, found in self.samples.items()}

    def read(self) -> dict[str, list[Sample]]:
        return self.samples


def silent(*_: object) -> None:
    pass


def gate(
    worker: FakeWorker, cases: list[PairedCase] | None = None, **rules: Any
) -> tuple[Any, Kept]:
    kept = Kept()
    chosen = cases or [case()]
    looks = rules.pop("looks", looks_for(0.05, 12))
    with PairedMeasurement(chosen, SETTINGS, SIDES, kept.keepers(), spawn=worker) as pair:
        pair.prepare(silent)
        return measure_and_judge(pair, Rules(looks=looks, **rules), kept.read, silent), kept


# --- order ----------------------------------------------------------------------------------------


def test_every_round_has_each_case_once_on_each_side_one_after_the_other() -> None:
    cases = [case("matmul"), case("mlp_train"), case("sweep")]
    for number, jobs in enumerate(paired_rounds(cases, 0, 20, seed=3)):
        assert Counter(job.case.id for job in jobs) == Counter(c.id for c in cases)
        assert {frozenset(job.sides) for job in jobs} == {frozenset(("base", "head"))}
        assert {(job.kind, job.index) for job in jobs} == {("timed", number)}


def test_the_side_that_goes_first_is_drawn_in_every_round() -> None:
    """Exact p-values rest on it: of 2000 draws, each is fair and independent of the one before."""
    firsts = [jobs[0].sides[0] for jobs in paired_rounds([case()], 0, 2000, seed=1)]
    heads = firsts.count("head")
    assert abs(heads - 1000) < 4 * 22.4  # four standard deviations of a fair coin
    repeats = sum(a == b for a, b in pairwise(firsts))
    assert abs(repeats - 1000) < 4 * 22.4


def test_the_order_of_a_round_depends_only_on_seed_and_round() -> None:
    cases = [case("matmul"), case("sweep")]
    whole = list(paired_rounds(cases, 0, 10, seed=5))
    assert list(paired_rounds(cases, 4, 10, seed=5)) == whole[4:]
    assert list(paired_rounds(cases, 0, 10, seed=6)) != whole


# --- verdicts -------------------------------------------------------------------------------------


def test_a_slower_head_is_a_regression_in_every_quantity_that_decides() -> None:
    report, _ = gate(FakeWorker(times(head=1.2)))
    assert report.verdict == "regression" and report.exit_code == 1
    gated = {c.quantity: c for c in report.comparisons if c.gated}
    assert set(gated) == {"cold_seconds", "compile", "warm_call_seconds"}
    for found in gated.values():
        assert found.verdict == "regression"
        assert found.effect.ratio == pytest.approx(1.2, abs=0.01)


def test_equal_sides_pass() -> None:
    report, _ = gate(FakeWorker(times()))
    assert report.verdict == "pass" and report.exit_code == 0
    assert report.rounds == 12


def test_one_more_compilation_fails_although_the_times_are_equal() -> None:
    worker = FakeWorker(times())
    worker.counts = {"head": {"compiles": 2}}
    report, _ = gate(worker)
    assert report.exit_code == 1
    assert [(c.name, c.base, c.head) for c in report.counts if c.verdict == "regression"] == [
        ("compiles", 1, 2)
    ]


@pytest.mark.parametrize(("same_jax", "code"), [(True, 1), (False, 0)])
def test_equations_of_the_check_process_are_gated_under_one_jax_only(
    same_jax: bool, code: int
) -> None:
    worker = FakeWorker(times())
    worker.counts = {"base": {"equations": 10}, "head": {"equations": 14}}
    kept = Kept()
    with PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), spawn=worker) as pair:
        pair.prepare(silent)
        worker.counts = {}  # timed processes do not count them
        rules = Rules(looks=looks_for(0.05, 12), same_jax=same_jax)
        report = measure_and_judge(pair, rules, kept.read, silent)
    assert report.exit_code == code
    assert [(c.base, c.head) for c in report.counts if c.name.startswith("equations")] == [(10, 14)]


def test_the_control_is_out_of_reach_of_either_side() -> None:
    """It runs under the gate's own interpreter, so a slow head does not affect it."""
    worker = FakeWorker(times(head=1.5))
    report, kept = gate(worker, [case(), control_case()], control=CONTROL)
    control = [c for c in worker.calls if "option_greeks" in c[1]]
    assert control and {side for side, _, _ in control} == {"own"}
    assert not report.control_moved
    assert report.verdict == "regression"
    assert {s.case for s in kept.samples["head"]} == {case().id, CONTROL}


def test_when_the_control_moves_the_times_prove_nothing() -> None:
    """A machine that is slower whenever the head runs."""
    worker = FakeWorker(times(head=1.5))
    rounds = paired_rounds([control_case()], 0, 12, SETTINGS.seed)
    turns = iter([side for jobs in rounds for job in jobs for side in job.sides])

    def spawn(job: Any, *arguments: Any, **turn: Any) -> Any:
        side = next(turns) if job["kind"] == "timed" else "own"
        return worker(job, *arguments, python=side, **turn)

    kept = Kept()
    with PairedMeasurement([control_case()], SETTINGS, SIDES, kept.keepers(), spawn=spawn) as pair:
        pair.prepare(silent)
        rules = Rules(looks=looks_for(0.05, 12), control=CONTROL)
        report = measure_and_judge(pair, rules, kept.read, silent)
    assert report.control_moved and report.exit_code == 3


def test_a_case_that_fails_on_one_side_is_timed_on_neither() -> None:
    worker = FakeWorker(times())
    worker.fails = {("head", "check")}
    report, kept = gate(worker)
    assert {kind for _, _, kind in worker.calls} == {"check"}
    assert (report.verdict, report.broken_by_head) == ("regression", (case().id,))
    assert [s.status for s in kept.samples["head"]] == ["failed"] * (1 + REPEATS)
    assert [s.status for s in kept.samples["base"]] == ["ok"] * (1 + REPEATS)


def test_both_sides_are_checked_also_where_the_first_fails() -> None:
    worker = FakeWorker(times())
    worker.fails = {("base", "check")}
    report, kept = gate(worker)
    assert {s.status for s in kept.samples["head"]} == {"ok"}
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)
    worker = FakeWorker(times())
    worker.fails = {("base", "check"), ("head", "check")}
    assert gate(worker)[0].verdict == "infrastructure"


def test_the_control_is_not_timed_if_everything_else_is_broken() -> None:
    worker = FakeWorker(times())
    worker.fails = {("head", "check")}
    report, _ = gate(worker, [case(), control_case()], control=CONTROL)
    assert {kind for _, _, kind in worker.calls} == {"check"}
    assert report.verdict == "regression" and CONTROL not in report.broken


@pytest.mark.parametrize(
    ("comparisons", "alpha", "least"),
    [(1, 0.05, 6), (2, 0.05, 7), (3, 0.05, 7), (39, 0.05, 11), (1, 0.5, 6), (1, 0.001, 11)],
)
def test_rounds_that_can_never_call_a_time_slower_are_refused(
    comparisons: int, alpha: float, least: int
) -> None:
    require_decidable(least, comparisons, alpha)
    with pytest.raises(SelectionError, match=rf"At least {least} are needed"):
        require_decidable(least - 1, comparisons, alpha)


# --- what breaks now and then --------------------------------------------------------------------


def test_a_process_that_breaks_once_is_repeated_on_both_sides_and_does_not_fail_the_gate() -> None:
    worker = FakeWorker(times())
    worker.breaks = lambda side, kind, number: (side, kind, number) == ("head", "timed", 4)
    report, kept = gate(worker)
    assert (report.verdict, report.rounds) == ("pass", 12)
    for side, statuses in (("base", ["ok", "ok"]), ("head", ["failed", "ok"])):
        fifth = [s for s in kept.samples[side] if (s.kind, s.index) == ("timed", 4)]
        assert [s.status for s in fifth] == statuses
    (found,) = report.flaky
    assert (found.verdict, found.base_broken, found.head_broken) == ("flaky", 0, 1)
    assert any("flaky" in reason and "1 of 14 on the head" in reason for reason in report.reasons)


def test_a_check_that_fails_once_does_not_keep_its_case_from_being_timed() -> None:
    worker = FakeWorker(times(head=1.2))
    worker.breaks = lambda side, kind, number: (side, kind, number) == ("base", "check", 0)
    report, _ = gate(worker)
    assert (report.verdict, report.rounds) == ("regression", 12)
    assert [f.case for f in report.flaky] == [case().id]


def test_a_process_that_always_breaks_on_the_head_fails_the_gate_and_is_not_timed_again() -> None:
    worker = FakeWorker(times())
    worker.breaks = lambda side, kind, number: (side, kind) == ("head", "timed") and number >= 2
    report, kept = gate(worker)
    assert (report.verdict, report.broken_by_head) == ("regression", (case().id,))
    assert sum(s.kind == "timed" for s in kept.samples["head"]) == 2 + 1 + REPEATS


def test_a_head_that_breaks_in_every_second_round_is_a_regression_although_repeats_succeed() -> (
    None
):
    """The gate continues until chance is excluded, here for a second look."""
    worker = FakeWorker(times())
    worker.breaks = lambda side, kind, number: (side, kind) == ("head", "timed") and number % 3 == 1
    report, _ = gate(worker, looks=(Look(12, 0.02), Look(24, 0.03)))
    assert (report.verdict, report.rounds) == ("regression", 24)
    (found,) = report.flaky
    assert (found.base_only_rounds, found.head_only_rounds) == (0, 12)
    # A sign test of 12 rounds, times four by Holm: three times of one case, and this.
    assert found.p_adjusted == pytest.approx(4 * 2 / 2**12)


def test_three_uneven_rounds_of_twelve_are_neither_a_regression_nor_nothing() -> None:
    worker = FakeWorker(times())
    broken = {1, 5, 9}
    worker.breaks = lambda side, kind, number: (
        (side, kind) == ("head", "timed") and number in broken
    )
    report, _ = gate(worker)
    assert (report.verdict, report.undecided) == ("inconclusive", (case().id,))


@pytest.mark.parametrize("share", [0.05, 0.4])
def test_a_benchmark_equally_flaky_on_both_sides_rarely_fails(share: float) -> None:
    """One commit against itself, 5 % of processes broken: once, one gate in four failed."""
    draw, verdicts, flaky = random.Random(3), Counter[str](), 0
    for _ in range(20):
        worker = FakeWorker(times())
        worker.breaks = lambda side, kind, number: draw.random() < share
        report, _ = gate(worker)
        verdicts[report.verdict] += 1
        flaky += bool(report.flaky)
    assert verdicts["regression"] <= 1  # 2.5 % of 20 at most; benchmarks/gate.py has more
    assert flaky > 5


def test_an_interrupted_repetition_is_taken_up_again() -> None:
    kept, first = Kept(), FakeWorker(times())
    first.breaks = lambda side, kind, number: (side, kind) == ("head", "timed")
    first.interrupt_after = 2 + 4  # both checks, the first round and its first repetition
    with (
        pytest.raises(KeyboardInterrupt),
        PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), spawn=first) as pair,
    ):
        pair.prepare(silent)
        pair.measure(0, 12, silent)
    done, second = {side: list(found) for side, found in kept.samples.items()}, FakeWorker(times())
    with PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), done, second) as pair:
        pair.prepare(silent)
        pair.measure(0, 12, silent)
    head = [s.status for s in kept.samples["head"] if (s.kind, s.index) == ("timed", 0)]
    assert head == ["failed", "failed", "ok"]


# --- looks ----------------------------------------------------------------------------------------


def wild(side: str, kind: str, number: int) -> tuple[float, float]:
    """Too noisy for twelve rounds: every third process takes half as long again."""
    slow = 1.5 if (number * 5 + (side == "head")) % 3 == 0 else 1.0
    return slow * noise(number), slow * noise(number + 3) * 1e-3


def test_a_gate_goes_on_while_a_case_is_undecided_and_stops_when_none_is() -> None:
    looks = (Look(12, 0.03), Look(24, 0.02))
    quiet = FakeWorker(times())
    report, _ = gate(quiet, looks=looks)
    assert report.rounds == 12 and report.alpha == 0.03
    noisy = FakeWorker(wild)
    report, _ = gate(noisy, looks=looks)
    assert report.rounds == 24 and report.alpha == 0.02


def test_a_proven_regression_ends_a_gate_even_if_other_cases_are_undecided() -> None:
    """It is as proven after 96 rounds for another case that is still noisy."""
    slow, noisy = case("matmul"), case("sweep")
    looks = (Look(12, 0.03), Look(24, 0.01), Look(48, 0.01))

    def worker() -> FakeWorker:
        made = FakeWorker(lambda *_: (1.0, 1e-3))
        quick, shaky = times(head=1.5), wild
        made.times_of = lambda program: shaky if "sweep" in program else quick
        return made

    report, _ = gate(worker(), [slow, noisy], looks=looks)
    # Twelve rounds have no p-value below 6 · 2 / 2¹² = 0.003: a regression, and not beyond doubt.
    assert (report.verdict, report.rounds, report.undecided) == ("regression", 24, (noisy.id,))
    assert "stopped after 24 rounds" in report.reasons[-1] and noisy.id in report.reasons[-1]
    report, _ = gate(worker(), [slow, noisy], looks=looks, fail_fast=False)
    assert (report.verdict, report.rounds) == ("regression", 48)


def test_shares_of_the_looks_add_up_to_the_requested_rate() -> None:
    assert sum(look.alpha for look in looks_for(0.01, None)) == pytest.approx(0.01)
    assert looks_for(0.1, 30) == (Look(30, 0.1),)


def test_at_the_deadline_complete_rounds_are_judged() -> None:
    now = [0.0]
    worker = FakeWorker(times(head=1.2))

    def spawn(*arguments: Any, **named: Any) -> Any:
        now[0] += 10.0
        return worker(*arguments, **named)

    kept = Kept()
    with PairedMeasurement(
        [case()], SETTINGS, SIDES, kept.keepers(), spawn=spawn, clock=lambda: now[0]
    ) as pair:
        pair.prepare(silent)  # 20 s; a round takes 20 s more
        report = measure_and_judge(
            pair, Rules(looks=looks_for(0.05, 12)), kept.read, silent, deadline=191.0
        )
    assert report.rounds == 8
    assert complete_rounds(kept.samples) == 8
    assert now[0] <= 191.0


# --- nothing is lost ------------------------------------------------------------------------------


def test_an_interrupted_gate_continues_where_it_stopped() -> None:
    kept = Kept()
    first = FakeWorker(times())
    first.interrupt_after = 2 + 7  # both checks, three rounds and a half: that half is lost
    with (
        pytest.raises(KeyboardInterrupt),
        PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), spawn=first) as pair,
    ):
        pair.prepare(silent)
        pair.measure(0, 12, silent)
    assert sum(len(found) for found in kept.samples.values()) == 8
    assert complete_rounds(kept.samples) == 3
    second = FakeWorker(times())
    done = {side: list(found) for side, found in kept.samples.items()}
    with PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), done, second) as pair:
        pair.prepare(silent)
        pair.measure(0, 12, silent)
    assert Counter(kind for _, _, kind in second.calls) == {"check": 2, "timed": 24 - 6}
    for found in kept.samples.values():
        assert [s.index for s in found if s.kind == "timed"] == list(range(12))
    orders = [s.order for found in kept.samples.values() for s in found]
    assert len(orders) == len(set(orders))


def test_if_one_process_of_a_pair_was_kept_only_the_other_is_measured_again() -> None:
    kept, worker = Kept(), FakeWorker(times())

    def spawn(*arguments: Any, turn: Any = None, **named: Any) -> Any:
        outcome = worker(*arguments, turn=turn, **named)
        if turn is not None and not turn.first:  # the second one is done and kept
            raise KeyboardInterrupt
        return outcome

    with (
        pytest.raises(KeyboardInterrupt),
        PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), spawn=spawn) as pair,
    ):
        pair.prepare(silent)
        pair.measure(0, 2, silent)
    assert sum(s.kind == "timed" for found in kept.samples.values() for s in found) == 1
    done, again = {side: list(found) for side, found in kept.samples.items()}, FakeWorker(times())
    with PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), done, again) as pair:
        pair.prepare(silent)
        pair.measure(0, 2, silent)
    assert sum(kind == "timed" for _, _, kind in again.calls) == 3
    assert complete_rounds(kept.samples) == 2


def test_if_the_first_of_a_pair_never_reaches_its_turn_the_other_is_measured_alone() -> None:
    kept, worker = Kept(), FakeWorker(times())

    def spawn(*arguments: Any, turn: Any = None, **named: Any) -> Any:
        return worker(*arguments, **named)  # an instrument that knows nothing of turns

    with PairedMeasurement([case()], SETTINGS, SIDES, kept.keepers(), spawn=spawn) as pair:
        pair.prepare(silent)
        pair.measure(0, 3, silent)
    assert complete_rounds(kept.samples) == 3


def test_order_records_which_process_of_a_pair_came_first() -> None:
    _, kept = gate(FakeWorker(times()))
    ordered = {
        side: {s.index: s.order for s in found if s.kind == "timed"}
        for side, found in kept.samples.items()
    }
    for number, jobs in enumerate(paired_rounds([case()], 0, 12, SETTINGS.seed)):
        first, second = jobs[0].sides
        assert ordered[second][number] - ordered[first][number] == 1


def test_paths_of_this_machine_do_not_get_into_the_samples() -> None:
    kept = Kept()
    with PairedMeasurement(
        [case()], SETTINGS, SIDES, kept.keepers(), spawn=FakeWorker(times())
    ) as pair:
        pair.prepare(silent)
        assert pair.modules["head"] == {case().id: {"pkg": "/private/head/pkg.py"}}
    assert "/private/" not in json.dumps(to_json(kept.samples))


def test_cases_that_are_left_out_are_not_timed() -> None:
    worker = FakeWorker(times())
    kept = Kept()
    cases = [case("matmul"), case("sweep")]
    with PairedMeasurement(cases, SETTINGS, SIDES, kept.keepers(), spawn=worker) as pair:
        pair.prepare(silent)
        pair.leave_out({cases[1].id})
        pair.measure(0, 2, silent)
    timed = {s.case for found in kept.samples.values() for s in found if s.kind == "timed"}
    assert timed == {cases[0].id}


def test_a_gate_with_incomparable_cases_does_not_pass() -> None:
    report, _ = gate(FakeWorker(times()))
    noted = with_notes(report, {"other": "its parameters are not the same on both sides"})
    assert (report.exit_code, noted.exit_code) == (0, 3)
    assert "other: not compared, because its parameters" in noted.reasons[-1]
    assert with_notes(report, {}, ["new: nothing to compare with."]).exit_code == 0
    failed, _ = gate(FakeWorker(times(head=1.5)))
    assert with_notes(failed, {"other": "x"}).exit_code == 1


def test_a_gate_on_a_quantity_that_no_case_has_does_not_pass() -> None:
    report, _ = gate(FakeWorker(times()), gated=("backend_init",))
    assert report.exit_code == 3


def test_counts_of_the_check_process_are_added_to_its_own_case_only() -> None:
    def sample(name: str, kind: str, **counts: int) -> Sample:
        return Sample(name, kind, 0, 0, "2026-01-01T00:00:00", "ok", counts=counts)

    given = [sample("a", "check", equations=5), sample("a", "timed"), sample("b", "timed")]
    assert [s.counts for s in for_decision(given)] == [{"equations": 5}, {"equations": 5}, {}]
