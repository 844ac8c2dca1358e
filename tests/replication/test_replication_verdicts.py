"""Verdicts of a replication, on values with known answers."""

from __future__ import annotations

import functools
import json
import math
import random
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import mannwhitneyu

from firstlight.compare.differences import Kind
from firstlight.compare.environments import changed, environment_differences, state, versions
from firstlight.compare.runs import DRIFT, Measured
from firstlight.measure.case_selection import SAMPLING
from firstlight.records import Estimate, Run, Sample, from_json
from firstlight.replication import repeating
from firstlight.replication.agreement import (
    Pairing,
    can_be_significant,
    judge,
    replicate_cases,
    replicate_ratios,
)
from firstlight.replication.page import case_reasons, replication_html
from firstlight.replication.repeating import write_report
from firstlight.replication.report import (
    PAGE,
    REPORT,
    CaseReplication,
    Delta,
    Reason,
    Replication,
    RunReplication,
    verdict_counts,
)
from firstlight.replication.report_checking import check_report
from firstlight.replication.selection import (
    ReplicationError,
    select,
    settings_here,
)
from firstlight.snapshot.layout import PLAN, RUN, SAMPLES
from firstlight.snapshot.opening import RawRun, open_snapshot
from firstlight.snapshot.publishing import publish
from firstlight.snapshot.storage import LocalStore
from firstlight.snapshot.strict_json import canonical
from firstlight.statistics.effects import Effect, holm
from firstlight.statistics.run_summaries import load
from firstlight.workloads.catalog import registered

sys.path.insert(0, str(Path(__file__).parents[1] / "snapshot"))
import made_up_run

pytestmark = pytest.mark.slow

NUMPY, JIT = made_up_run.make_case(), made_up_run.make_case(backend="jax-jit")


def scaled(sample: Sample, factor: float) -> Sample:
    if sample.cold is None or sample.warm is None:
        return sample
    phases = {k: v and v * factor for k, v in sample.cold.phases_seconds.items()}
    cold = replace(
        sample.cold,
        total_seconds=sample.cold.total_seconds * factor,
        phases_seconds=phases,
        unattributed_seconds=sample.cold.unattributed_seconds * factor,
    )
    warm = replace(sample.warm, call_seconds=tuple(c * factor for c in sample.warm.call_seconds))
    return replace(sample, cold=cold, warm=warm)


def measured_in(base: Path, seed: int, numpy: float, jit: float, **host: Any) -> Measured:
    """A run of NumPy and JIT with 20 processes, each `factor` times as slow as made up."""
    draw = random.Random(seed)
    samples = [
        scaled(s, factor)
        for case, factor in ((NUMPY, numpy), (JIT, jit))
        for s in made_up_run.make_samples(case, 20, 20, draw)
    ]
    folder = made_up_run.make_run(
        base / f"run-{seed}", seed, cases=(NUMPY, JIT), processes=20, samples=samples,
        host={**made_up_run.HOST, **host},
    )  # fmt: skip
    run, kept = load(folder)
    return Measured(str(seed), run, kept)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a run, once per set of arguments."""

    @functools.cache
    def make(seed: int, numpy: float, jit: float, host: str) -> Measured:
        base = tmp_path_factory.mktemp("measured")
        return measured_in(base, seed, numpy, jit, **json.loads(host))

    def asked(seed: int, numpy: float = 1.0, jit: float = 1.0, **host: Any) -> Measured:
        return make(seed, numpy, jit, json.dumps(host))

    return asked


def pairing(one: Measured, other: Measured) -> Pairing:
    return Pairing("runs/001", one, other)


def reasons_of(case: CaseReplication, *runs: Measured) -> list[str]:
    """The sentences about a case in a report of these runs."""
    states = [state(m.run) for m in runs] or [{}, {}]
    run = RunReplication("", "", None, case.run, "", None, "", "", *states, {}, ())
    return case_reasons(report_with((run,), case))[0]


def report_with(runs: tuple[RunReplication, ...], *cases: CaseReplication) -> Replication:
    return Replication({}, "", "", {}, runs, cases, (), (), verdict_counts(cases), DRIFT)


def effect(low: float, high: float, confidence: float = 0.95, n: int = 10) -> Effect:
    return Effect(math.sqrt(low * high), low, high, confidence, 0.001, n, False)


@pytest.mark.parametrize(
    ("low", "high", "p", "verdict"),
    [
        (0.9, 1.1, 0.5, "agrees"),
        (1.05, 1.14, 0.0001, "agrees"),  # a real difference, and smaller than drift
        (1.16, 1.3, 0.001, "differs"),
        (0.5, 0.8, 0.001, "differs"),
        (1.16, 1.3, 0.2, "undecided"),
        (1.0, 1.2, 0.001, "undecided"),
        (0.5, 2.0, 0.9, "undecided"),
    ],
)
def test_a_change_agrees_within_drift_and_differs_beyond(
    low: float, high: float, p: float, verdict: str
) -> None:
    assert judge(effect(low, high), p)[0] == verdict


def test_too_few_processes_decide_nothing() -> None:
    assert judge(effect(0.99, 1.01, confidence=0.9), 0.5)[0] == "undecided"


def test_too_few_processes_for_significance_are_reported_instead_of_a_p_value() -> None:
    """Six against six have 924 orders, so 2/924 at best: in 40 comparisons that is 0.087."""
    assert can_be_significant([(6, 6)] * 40)[-1] is False
    found = effect(1.2, 1.3, n=6)
    assert judge(found, 0.5, can_be=False) == ("undecided", Reason.NEVER_SIGNIFICANT)
    value = Estimate(1.0, 1.0, 1.0, 6, 0.95)
    delta = Delta("compile", True, value, value, found, 0.5, "undecided", Reason.NEVER_SIGNIFICANT)
    case = CaseReplication("runs/001", "c", "undecided", (), None, None, "ok", None, (delta,) * 40)
    (words, *_), *_ = case_reasons(report_with((), case))
    assert words == (
        "compile: +24.9 %, but 6 processes per side can never be significant in 40 comparisons: "
        "it takes 7 or more"
    )
    assert all(can_be_significant([(6, 6)] * 23))  # 23 * 2/924 = 0.0498


def test_a_report_that_claims_a_billion_processes_is_judged_at_once() -> None:
    assert can_be_significant([(10**9, 10**9), (10**9, 1)]) == [True, True]


def test_the_same_machine_and_speed_agree_and_a_slower_case_differs(measured: Any) -> None:
    first, second = measured(1), measured(2, jit=1.6)
    alike, slow = replicate_cases([pairing(first, second)])
    assert (alike.verdict, slow.verdict) == ("agrees", "differs")
    delta = next(d for d in slow.deltas if d.quantity == "cold_seconds")
    totals = [
        [s.cold.total_seconds for s in m.samples if s.case == JIT.id and s.cold is not None]
        for m in (first, second)
    ]
    oracle = mannwhitneyu(*totals, alternative="two-sided", method="exact")
    assert delta.effect.p == pytest.approx(oracle.pvalue, rel=1e-9)
    quotients = [b / a for a in totals[0] for b in totals[1]]
    assert delta.effect.ratio == pytest.approx(statistics.median(quotients), rel=1e-3)
    assert delta.published.median == pytest.approx(statistics.median(totals[0]), rel=1e-12)
    assert delta.reason is Reason.BEYOND_DRIFT
    assert any("beyond the 15% of drift" in reason for reason in reasons_of(slow, first, second))


def test_on_another_machine_only_ratios_are_comparable(measured: Any) -> None:
    cpu = {**made_up_run.HOST["cpu"], "model": "Other CPU"}
    here = measured(2, numpy=3.0, jit=3.0, cpu=cpu)
    pair = pairing(measured(1), here)
    for case in replicate_cases([pair]):
        assert case.verdict == "not comparable"
        assert [d.kind for d in case.differences] == [Kind.MACHINE]
        (words,) = reasons_of(case)
        assert words.endswith("here") and "Other CPU" in words
    cold, warm = replicate_ratios([pair])
    assert (cold.case, cold.against) == (JIT.id, NUMPY.id)
    assert (cold.quantity, warm.quantity) == ("cold_seconds", "warm_call_seconds")
    assert cold.order == "same" and cold.published.low > 1  # jit starts later on both
    assert cold.verdict == warm.verdict == "agrees"
    assert cold.effect.low < 1 < cold.effect.high


def test_a_reversed_order_of_two_cases_is_found(measured: Any) -> None:
    cpu = {**made_up_run.HOST["cpu"], "model": "Other CPU"}
    pair = pairing(measured(1), measured(2, numpy=5.0, cpu=cpu))
    cold, _ = replicate_ratios([pair])
    assert (cold.order, cold.verdict) == ("reversed", "differs")


def is_check(sample: Sample) -> bool:
    return sample.case == JIT.id and sample.kind == "check"


def test_with_other_input_data_neither_times_nor_ratios_are_compared(measured: Any) -> None:
    here = measured(2)
    samples = [
        replace(s, facts={**s.facts, "data_sha256": ["b" * 64]}) if is_check(s) else s
        for s in here.samples
    ]
    pair = pairing(measured(1), replace(here, samples=samples))
    alike, other = replicate_cases([pair])
    assert alike.verdict == "agrees"
    assert other.verdict == "not comparable" and "SHA-256" in reasons_of(other)[0]
    assert replicate_ratios([pair]) == []


def test_a_wrong_result_here_differs_on_any_machine(measured: Any) -> None:
    here = measured(2, cpu={**made_up_run.HOST["cpu"], "model": "Other CPU"})
    cases = tuple(
        replace(c, status="failed", reason="off by 2") if c.case == JIT.id else c
        for c in here.run.cases
    )
    pair = pairing(measured(1), replace(here, run=replace(here.run, cases=cases)))
    _, wrong = replicate_cases([pair])
    assert wrong.verdict == "differs" and reasons_of(wrong) == ["failed here: off by 2"]


def with_run(run: Run, **host: Any) -> Run:
    return replace(run, host={**run.host, **host})


def test_differences_between_environments_are_grouped_by_kind(measured: Any) -> None:
    one = measured(1).run
    other = with_run(
        one,
        packages={"jax": "0.11.0", "numpy": "2.4.6"},
        environment={"OMP_NUM_THREADS": "2"},
        lock=["jax==0.11.0", "numpy==2.4.6", "extra==1"],
        gpus=[{"name": "GPU", "driver_version": "580"}],
    )
    found = environment_differences(one, other)
    assert found["versions"] == ["jax 0.10.2 → 0.11.0", "GPU driver absent → 580"]
    assert found["variables"] == ["OMP_NUM_THREADS: '8' → '2'"]
    assert found["packages"] == ["jax 0.10.2 → 0.11.0", "extra absent → 1"]
    assert len(found["hardware"]) == 1 and "GPU" in found["hardware"][0]
    assert not any(environment_differences(one, one).values())


@pytest.mark.parametrize("junk", [None, [], "text", 3])
def test_a_malformed_host_of_a_stranger_does_not_crash(junk: Any) -> None:
    host = dict.fromkeys(("python", "packages", "os", "gpus", "commit", "lock"), junk)
    assert versions(host, {}) == {}
    assert changed({}, {}) == []


def test_a_case_that_is_different_here_is_not_run() -> None:
    from firstlight.measure.case_selection import make_case

    backends, workloads = registered()
    mine = make_case(workloads["matmul"], "small", backends["numpy"], "none")
    statuses = {mine.id: "ok"}
    assert select([mine], statuses, {}, {}).cases == (mine,)
    for change in (
        {"program": "os:system"},
        {"adapter": "subprocess:Popen"},
        {"parameters": {"n": 10**9}},
        {"environment": {"LD_PRELOAD": "/tmp/evil.so"}},
        {"tolerance": 1.0},
        {"seed": 1},
        {"reference": "os:system"},
    ):
        found = select([replace(mine, **change)], statuses, {}, {})
        assert found.cases == () and next(iter(change)) in found.left_out[mine.id]
    unknown = replace(mine, workload="matmul2", id="matmul2[small]/numpy/none")
    found = select([unknown], {unknown.id: "ok"}, {}, {})
    assert "no such workload" in found.left_out[unknown.id]
    assert "failed" in select([mine], {mine.id: "failed"}, {}, {}).left_out[mine.id]


def test_settings_that_would_occupy_the_machine_for_days_are_refused() -> None:
    usual = SAMPLING["full"]
    assert settings_here(usual) == (usual, [])
    for change in ({"processes": 10**6}, {"timeout_seconds": 1e9}, {"warm_seconds": -1.0}):
        with pytest.raises(ReplicationError, match=next(iter(change))):
            settings_here(replace(usual, **change))
    here, notes = settings_here(replace(usual, affinity=(100_000,)))
    assert here.affinity is None and "100000" in notes[0]


@pytest.mark.parametrize("side", ["published", "here"])
def test_a_run_on_a_busy_machine_decides_nothing(measured: Any, side: str) -> None:
    busy = {"cpu_busy_ratio": 1.0}
    first = measured(1, **(busy if side == "published" else {}))
    second = measured(2, jit=1.6, **(busy if side == "here" else {}))
    for case in replicate_cases([pairing(first, second)]):
        assert case.verdict == "undecided"
        assert "were using 100% of the CPU" in reasons_of(case, first, second)[0]
        assert {d.verdict for d in case.deltas if d.judged} & {"agrees", "differs"}
    # Half is the limit; a third only causes a warning.
    second = measured(3, jit=1.6, cpu_busy_ratio=0.3)
    assert replicate_cases([pairing(measured(4), second)])[1].verdict == "differs"


def test_malformed_load_and_warnings_of_a_stranger_count_as_absent(measured: Any) -> None:
    run = measured(1).run
    assert state(run) == {
        "load": [0.1, 0.2, 0.3], "load_after": [0.2, 0.2, 0.3], "cpu_busy_ratio": 0.01,
        "warnings": ["this machine does not exist"],
    }  # fmt: skip
    for junk in (None, "text", {}, [None], [True], [float("nan")], [-1], float("inf")):
        found = state(with_run(run, load=junk, load_after=junk, cpu_busy_ratio=junk))
        assert (found["load"], found["load_after"], found["cpu_busy_ratio"]) == (None, None, None)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of an honest report (NumPy agrees, JIT differs), and the snapshot it repeats."""
    from firstlight.measure.host import harness

    base = tmp_path_factory.mktemp("honest")
    measured_in(base, 1, 1.0, 1.0)
    published = publish([base / "run-1"], LocalStore(base / "store")).location
    second, snapshot = measured_in(base, 2, 1.0, 1.6), open_snapshot(published)
    files = {name: (base / "run-2" / name).read_bytes() for name in (PLAN, SAMPLES, RUN)}
    pair = repeating.pairing(snapshot, 0, RawRun.of("runs/001", files))
    cases = replicate_cases([pair])
    made = Replication(
        snapshot={"id": snapshot.id, "title": snapshot.manifest["publication"]["title"],
                  "signature": "none", "signer": None},
        created_at="2026-03-01T10:00:00.000+00:00", finished_at="2026-03-01T10:01:00.000+00:00",
        harness=harness(), runs=(repeating.run_replication(snapshot, 0, second.run, ()),),
        cases=tuple(cases), ratios=tuple(replicate_ratios([pair])), left_out=(),
        verdicts=verdict_counts(cases), drift=DRIFT,
    )  # fmt: skip
    folder = base / "report"
    (folder / "runs").mkdir(parents=True)
    shutil.copytree(base / "run-2", folder / "runs/001")
    write_report(folder, made, None)
    return folder, published


@pytest.fixture
def published(honest: tuple[Path, str]) -> str:
    return honest[1]


@pytest.fixture
def report(honest: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the honest report, to be forged."""
    return shutil.copytree(honest[0], tmp_path / "report")


def test_a_snapshot_whose_key_has_expired_is_reported_as_such(report: Path) -> None:
    plain = json.loads((report / REPORT).read_text())
    plain["snapshot"].update(signature="expired", signer="ab" * 16)
    write_report(report, from_json(Replication, plain), None)
    assert not check_report(report).findings


def rewritten(folder: Path, change: Any) -> None:
    """Change the report and draw its page again, as a careful forger would."""
    plain = json.loads((folder / REPORT).read_text())
    change(plain)
    (folder / REPORT).write_bytes(canonical(plain))
    (folder / PAGE).write_text(replication_html(from_json(Replication, plain)), "utf-8")


def test_an_honest_report_has_no_findings_and_lists_what_it_cannot_show(
    report: Path, published: str
) -> None:
    found = check_report(report)
    assert not found.findings
    said = " ".join(found.holds)
    for part in ("the page of this report", "every verdict follows", "values from here follow"):
        assert part in said
    assert "runs/001 is the run that is described" in said
    assert any("give the snapshot" in text for text in found.unknown)
    page = (report / PAGE).read_text("utf-8")
    assert "1% of the CPU used by others" in page and "load 0.10 0.20 0.30 before" in page
    assert page.count("this machine does not exist") == 2
    found = check_report(report, snapshot=published, expected_id=found.snapshot)
    assert not found.findings and not any("give the snapshot" in text for text in found.unknown)
    assert "all values, effects and verdicts follow from the snapshot and runs" in found.holds
    (wrong,) = check_report(report, expected_id="0" * 64).findings
    assert f"about the snapshot {found.snapshot}, not" in wrong


def agreeing(plain: Any) -> None:
    """Forge the effects, and derive every conclusion from them correctly."""
    for delta in jit(plain)["deltas"]:
        delta["effect"].update(ratio=1.0, low=0.99, high=1.01, p=1.0)
        delta["p_adjusted"] = 1.0
        if delta["judged"]:
            delta.update(verdict="agrees", reason=None)
    judged = [d for case in plain["cases"] for d in case["deltas"] if d["judged"]]
    for delta, p in zip(judged, holm([d["effect"]["p"] for d in judged]), strict=True):
        delta["p_adjusted"] = p
    jit(plain)["verdict"] = "agrees"
    plain["verdicts"] = {"agrees": 2, "differs": 0, "undecided": 0, "not comparable": 0}


def test_forged_effects_are_found_if_the_snapshot_is_given(report: Path, published: str) -> None:
    rewritten(report, agreeing)
    found = check_report(report)
    assert not found.findings and any("p-values" in text for text in found.unknown)
    wrong = check_report(report, snapshot=published).findings
    assert any("verdict: 'agrees', not 'differs'" in text or "effect" in text for text in wrong)


def quiet(folder: Path) -> None:
    """Make the run one on a loaded machine, which the report describes as idle."""
    for name in ("plan.json", "run.json"):
        plain = json.loads((folder / "runs/001" / name).read_text())
        plain["host"]["cpu_busy_ratio"] = 0.96
        (folder / "runs/001" / name).write_text(json.dumps(plain))


def wrong_result(folder: Path) -> None:
    """Make a case of the run fail, which the report describes as correct."""
    path = folder / "runs/001/run.json"
    plain = json.loads(path.read_text())
    plain["cases"][0].update(status="failed", reason="wrong")
    path.write_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (quiet, "state_here.cpu_busy_ratio: 0.01, not 0.96"),
        (wrong_result, "status_here: 'ok', not 'failed'"),
        (lambda folder: (folder / "runs/001/run.json").unlink(), "runs/001/run.json is missing"),
    ],
)
def test_a_report_that_contradicts_the_run_beside_it_is_found(
    report: Path, change: Any, said: str
) -> None:
    change(report)
    assert any(said in text for text in check_report(report).findings)


def test_a_page_that_is_not_drawn_from_the_report_is_found(report: Path) -> None:
    page = report / PAGE
    honest = page.read_text("utf-8")
    forged = honest.replace("differs</span>", "agrees</span>", 1)
    page.write_text(forged, "utf-8")
    assert any("not the page of this report" in text for text in check_report(report).findings)
    # The page of a report by another Firstlight cannot be checked: neither good nor a finding.
    rewritten(report, lambda plain: plain["harness"].update(version="0.0.1"))
    page.write_text(forged, "utf-8")
    found = check_report(report)
    assert not found.findings and any("Do not rely on the page" in t for t in found.unknown)
    page.unlink()
    assert any("is missing" in text for text in check_report(report).findings)


def jit(plain: Any) -> Any:
    return plain["cases"][1]


def delta_of(plain: Any, quantity: str = "cold_seconds") -> Any:
    return next(d for d in jit(plain)["deltas"] if d["quantity"] == quantity)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: jit(p).update(verdict="agrees"), "verdict: 'agrees', not 'differs'"),
        (lambda p: jit(p).update(verdict="not comparable"), "'not comparable', not 'differs'"),
        (lambda p: jit(p).update(failure_here="no"), "failure_here: 'no', not None"),
        (lambda p: jit(p).update(verdict="not comparable", differences=[
            {"kind": "machine", "field": "class", "before": 1, "after": 2, "key": None}]),
         "judged: True, not False"),
        (lambda p: delta_of(p).update(verdict="agrees"), "verdict: 'agrees', not 'differs'"),
        (lambda p: delta_of(p).update(reason=None), "reason: None, not 'beyond drift'"),
        (lambda p: delta_of(p).update(judged=False, verdict="undecided", reason=None),
         "judged: False, not True"),
        (lambda p: delta_of(p).update(p_adjusted=0.9), "p_adjusted: 0.9, not"),
        (lambda p: delta_of(p)["here"].update(median=0.001), "here.median: 0.001, not"),
        (lambda p: p["verdicts"].update(agrees=2, differs=0), "verdicts.agrees: 2, not 1"),
        (lambda p: p.update(drift=5.0), "drift and alpha[0]: 5.0, not 0.15"),
        (lambda p: p["ratios"][0].update(verdict="undecided"), "verdict: 'undecided', not"),
        (lambda p: p["ratios"][0].update(order="reversed"), "order: 'reversed', not"),
        (lambda p: p["ratios"][0]["here"].update(ratio=1.0), "its ratio here.ratio: 1.0, not"),
        (lambda p: p["runs"][0]["state_here"].update(cpu_busy_ratio=0.9), "not 'undecided'"),
        (lambda p: jit(p).update(run="runs/007"), "is not in the report"),
        (lambda p: jit(p).update(status_here="crashed"), "judged: True, not False"),
    ],
)  # fmt: skip
def test_a_conclusion_that_does_not_follow_is_found_even_in_an_unsigned_report(
    report: Path, change: Any, said: str
) -> None:
    rewritten(report, change)
    assert any(said in text for text in check_report(report).findings)


def test_unreadable_or_empty_samples_are_a_finding(report: Path) -> None:
    import hashlib

    samples = report / "runs/001/samples.jsonl"
    for data in (b"not json\n", b""):
        samples.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        rewritten(report, lambda p, d=digest: p["runs"][0].update(samples_sha256=d))
        assert check_report(report).findings
