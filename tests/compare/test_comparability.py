from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firstlight.compare.conditions import machine_class
from firstlight.compare.differences import Difference, Kind, differences, in_words
from firstlight.compare.runs import (
    Measured,
    NotComparableError,
    RunsReport,
    compare_runs,
    enough_runs,
    runs_needed,
)
from firstlight.records import Run, Sample

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from synthetic import HOST, Plan, make_run  # type: ignore[import-not-found]

CASE = "mlp_train[small]/jax-jit/none"
BACKENDS = ("numpy", "jax-jit")
NUMPY = "mlp_train[small]/numpy/none"


def measured(name: str, seed: float = 1.0, **changes: Any) -> Measured:
    """A run of two cases; `seed` scales the compiled one's warm call, so runs can differ."""
    plans = [
        Plan("mlp_train", "small", "numpy", processes=10),
        Plan("mlp_train", "small", "jax-jit", processes=10, speed=seed),
    ]
    run, samples = make_run(plans, id=name, **changes)
    return Measured(name, run, samples)


def with_protocol(run: Run, **changes: Any) -> Run:
    return replace(
        run,
        cases=tuple(
            replace(c, protocol=replace(c.protocol, **changes)) if c.case == CASE else c
            for c in run.cases
        ),
    )


def host(**changes: Any) -> Mapping[str, Any]:
    return {**HOST, **changes}


# --- machine classes ------------------------------------------------------------------------------


def test_a_machine_class_names_what_makes_a_machine() -> None:
    known = {
        "cpu": {"model": "Some  CPU @ 3 GHz", "usable_cores": 8, "architecture": "x86_64"},
        "container": {"cpu_quota": 1.5, "memory_limit_bytes": 4 << 30},
        "memory_bytes": 64 << 30,
        "gpus": [{"name": "GPU B"}, {"name": "GPU A"}, {"name": "GPU B"}],
        "os": {"system": "Linux"},
    }
    assert machine_class(known) == (
        "Some CPU @ 3 GHz / 8 cores at 1.5 CPUs / about 4 GiB / 1 × GPU A / 2 × GPU B / "
        "Linux x86_64"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": {**HOST["cpu"], "model": "Another CPU"}},
        {"cpu": {**HOST["cpu"], "usable_cores": 4}},
        {"container": {"cpu_quota": 2.0, "memory_limit_bytes": None}},
        {"memory_bytes": 8 << 30},
        {"gpus": [{"name": "H200"}]},
        {"os": {"system": "Darwin"}},
    ],
)
def test_another_kind_of_machine_has_another_class(change: dict[str, Any]) -> None:
    assert machine_class(host(**change)) != machine_class(HOST)


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bytes": HOST["memory_bytes"] - (200 << 20)},  # what a kernel keeps for itself
        {"os": {"system": "Linux", "release": "6.9", "distribution": "Another"}},
        {"python": {"version": "3.13.0"}},
        {"load": [9.0, 9.0, 9.0]},
    ],
)
def test_kernels_loads_and_versions_make_no_other_machine(change: dict[str, Any]) -> None:
    assert machine_class(host(**change)) == machine_class(HOST)


def test_an_unknown_machine_has_a_class_too() -> None:
    assert "unknown CPU" in machine_class({})


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"gpus": ["some GPU"]}, "1 × some GPU"),
        ({"gpus": "x"}, "unknown CPU"),
        ({"cpu": "x"}, "unknown CPU"),
        ({"container": {"cpu_quota": "2", "memory_limit_bytes": "many"}}, "unknown memory"),
        ({"memory_bytes": [1]}, "unknown memory"),
        ({"os": ["Linux"]}, "unknown OS"),
    ],
)
def test_a_machine_that_a_stranger_described_oddly_has_a_class(odd: Any, words: str) -> None:
    assert words in machine_class(odd)


# --- what forbids comparing -----------------------------------------------------------------------


def test_a_run_is_comparable_with_itself() -> None:
    run = measured("one").run
    assert differences(run, run, CASE) == []


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"parameters": {"batch": 128, "width": 256}},
            Kind.DATA,
            "data, parameters: batch is 64 in the base, 128 in the head",
        ),
        ({"data_bytes": 1}, Kind.DATA, "data, data_bytes: 65536 in the base, 1 in the head"),
        ({"seed": 8}, Kind.DATA, "data, seed: 7 in the base, 8 in the head"),
        (
            {"cache": "warm"},
            Kind.PROTOCOL,
            "protocol, cache: 'none' in the base, 'warm' in the head",
        ),
        ({"sync": "none"}, Kind.PROTOCOL, "protocol, sync"),
        (
            {"threads": {"cpu": 2}},
            Kind.PROTOCOL,
            "protocol, threads: cpu is 8 in the base, 2 in the head",
        ),
        ({"precision": {}}, Kind.PROTOCOL, "matmul is 'highest' in the base, not set in the head"),
        (
            {"environment": {"XLA_FLAGS": "-x"}},
            Kind.PROTOCOL,
            "XLA_FLAGS is not set in the base, '-x' in the head",
        ),
        ({"bytecode": "not written"}, Kind.PROTOCOL, "protocol, bytecode"),
    ],
)
def test_another_protocol_or_other_data_is_named(
    change: dict[str, Any], kind: Kind, words: str
) -> None:
    run = measured("one").run
    found = differences(run, with_protocol(run, **change), CASE)
    ((field, _),) = change.items()
    assert {(d.kind, d.field) for d in found} == {(kind, field)}
    assert any(words in in_words(difference) for difference in found), found
    assert differences(run, with_protocol(run, **change), NUMPY) == []


def test_variables_that_steer_a_framework_forbid_comparing_and_search_paths_do_not() -> None:
    run = measured("one").run
    paths = replace(run, host=host(environment={**HOST["environment"], "PYTHONPATH": "/x"}))
    assert differences(run, paths, CASE) == []
    flags = replace(run, host=host(environment={"OMP_NUM_THREADS": "1"}))
    (found,) = differences(run, flags, CASE)
    assert found == Difference(Kind.ENVIRONMENT, "variables", "8", "1", "OMP_NUM_THREADS")
    assert in_words(found, "published", "here") == (
        "environment: OMP_NUM_THREADS is '8' published, '1' here"
    )


def hashed(m: Measured, *hashes: str | None) -> Measured:
    """A run with a check process of CASE that hashed its input arrays."""
    facts = {"data_sha256": None if hashes == (None,) else list(hashes)}
    check = Sample(CASE, "check", 0, 0, "", "ok", facts=facts)
    return replace(m, samples=[check, *(s for s in m.samples if s.kind != "check")])


def test_data_with_another_hash_forbid_comparing_and_unknown_ones_do_not() -> None:
    one = hashed(measured("one"), "aa", "bb")
    other = hashed(measured("two"), "aa", "cc")
    (found,) = differences(one.run, other.run, CASE, (one.samples, other.samples))
    assert found == Difference(Kind.CONTENTS, "input 1", "bb", "cc")
    words = in_words(found)
    assert "input 1 has other contents" in words and "bb" in words and "cc" in words
    for same in (hashed(measured("two"), "aa", "bb"), hashed(measured("two"), None)):
        assert differences(one.run, same.run, CASE, (one.samples, same.samples)) == []
    report = compare_runs([one], [other])
    assert "other contents" in report.left_out[CASE]
    assert {c.case for c in report.comparisons} == {NUMPY}
    assert not compare_runs([one], [other], anyway=True).left_out


def test_a_run_that_could_not_hash_its_data_hides_no_difference_between_the_others() -> None:
    unknown, one = hashed(measured("none"), None), hashed(measured("one"), "aa")
    other = hashed(measured("two"), "bb")
    assert "other contents" in compare_runs([unknown, one], [other]).left_out[CASE]
    assert CASE not in compare_runs([unknown, one], [hashed(measured("two"), "aa")]).left_out


def test_a_case_without_a_partner_or_a_protocol_is_named() -> None:
    run = measured("one").run
    alone = replace(run, cases=run.cases[:1])
    (found,) = differences(run, alone, CASE)
    assert found.kind is Kind.CASE and in_words(found) == "it was not measured in the head"
    bare = replace(run, cases=tuple(replace(c, protocol=None) for c in run.cases))
    (found,) = differences(bare, run, CASE)
    assert found.kind is Kind.CASE and in_words(found) == "it has no protocol in the base"


# --- runs that were measured apart ----------------------------------------------------------------


def verdict(report: RunsReport, quantity: str = "warm_call_seconds", case: str = CASE) -> str:
    (found,) = [c for c in report.comparisons if (c.case, c.quantity) == (case, quantity)]
    return found.verdict


def test_single_runs_are_compared_by_processes_and_say_what_they_cannot_see() -> None:
    report = compare_runs([measured("one")], [measured("two")])
    assert (report.unit, verdict(report)) == ("process", "same")
    assert "drift" in report.warnings[0]
    assert not any(c.effect.paired for c in report.comparisons)


def test_between_single_runs_a_change_within_drift_is_inconclusive_and_one_beyond_counts() -> None:
    base = [measured("one")]
    within = compare_runs(base, [measured("two", 1.10)])
    assert verdict(within) == "inconclusive"
    assert verdict(compare_runs(base, [measured("two", 1.4)])) == "regression"
    assert verdict(compare_runs(base, [measured("two", 0.6)])) == "improvement"


def test_with_enough_runs_of_each_side_the_run_is_the_unit_and_finds_a_change() -> None:
    factors = (0.97, 0.99, 1.0, 1.01, 1.03)
    base = [measured(f"base {f}", f) for f in factors]
    report = compare_runs(base, [measured(f"head {f}", 1.12 * f) for f in factors])
    assert (report.unit, report.drift) == ("run", None)
    assert all(c.effect.n == 5 for c in report.comparisons)
    (found,) = [
        c for c in report.comparisons if (c.case, c.quantity) == (CASE, "warm_call_seconds")
    ]
    assert found.effect.low <= 1.12 <= found.effect.high
    assert found.effect.p == pytest.approx(2 / 252)  # exact: 10 choose 5 orders, both extremes
    assert found.verdict == "regression"


@pytest.mark.parametrize("side", ["base", "head"])
def test_a_run_beside_which_others_used_the_cpu_decides_nothing(side: str) -> None:
    """The rule of `replicate`, on the same record: half of the CPU is the limit."""
    busy, calm = {"host": host(cpu_busy_ratio=0.83)}, {"host": host(cpu_busy_ratio=0.3)}
    base = measured("monday", **(busy if side == "base" else calm))
    head = measured("tuesday", 0.6, **(busy if side == "head" else calm))
    report = compare_runs([base], [head])
    name = "monday" if side == "base" else "tuesday"
    assert {c.verdict for c in report.comparisons} == {"inconclusive"}
    assert report.disturbed == {name: 0.83}
    said = f"other programs were using 83% of the CPU when the run {name} began"
    assert said in report.warnings[0]
    quiet = [measured(m.name, speed, **calm) for m, speed in ((base, 1.0), (head, 0.6))]
    assert verdict(compare_runs(quiet[:1], quiet[1:])) == "improvement"


def test_processes_that_can_never_be_significant_are_said_to_be_too_few() -> None:
    """With four runs per side no p-value is below 2 / C(8, 4) = 1/35; five times that is 0.14."""

    def few(name: str, speed: float) -> Measured:
        plans = [Plan("mlp_train", "small", b, processes=4, speed=speed) for b in BACKENDS]
        run, samples = make_run(plans, id=name)
        return Measured(name, run, samples)

    report = compare_runs([few("one", 1.0)], [few("two", 3.0)])
    decisive = [c for c in report.comparisons if c.gated]
    assert decisive and not any(c.can_be_significant for c in decisive)
    reasons = [c.reason or "" for c in decisive if c.quantity == "warm_call_seconds"]
    number = len(decisive)
    needed = next(n for n in range(1, 99) if number * 2 / math.comb(2 * n, n) < 0.05)
    assert f"4 processes per side can never be significant in {number} comparisons" in reasons[0]
    assert f"takes {needed} or more" in reasons[0] and "p is" not in reasons[0]


@pytest.mark.parametrize(
    ("gibibytes", "words"),
    [
        (23.5, "24"),
        (15.6, "16"),
        (31.2, "32"),
        (7.7, "8"),
        (251.0, "256"),
        (1.9, "2"),
        (20.1, "20"),
    ],
)
def test_memory_is_reported_as_approximate(gibibytes: float, words: str) -> None:
    assert f"about {words} GiB" in machine_class(host(memory_bytes=int(gibibytes * 2**30)))


def test_four_runs_cannot_find_anything_after_holm_so_processes_stay_the_unit() -> None:
    factors = (0.97, 0.99, 1.01, 1.03)
    base = [measured(f"base {f}", f) for f in factors]
    report = compare_runs(base, [measured(f"head {f}", 0.5 * f) for f in factors])
    gated = sum(c.gated for c in report.comparisons)
    assert gated * 2 / 70 > 0.05 > gated * 2 / 252
    assert (report.unit, report.drift) == ("process", 0.15)
    assert "or 5 runs per side" in report.warnings[0]
    assert verdict(report) == "improvement"


def test_runs_are_enough_where_holm_leaves_something_to_find() -> None:
    for comparisons in (1, 2, 6, 7, 40):
        needed = runs_needed(comparisons)
        assert comparisons * 2 / math.comb(2 * needed, needed) < 0.05
        assert comparisons * 2 / math.comb(2 * needed - 2, needed - 1) >= 0.05
    assert enough_runs(5, 5, 6) and not enough_runs(5, 5, 7) and not enough_runs(4, 4, 2)


def test_the_same_run_counts_once_on_a_side() -> None:
    one, two = measured("one"), measured("two")
    again = replace(one, name="a copy")
    for sides in (([one, again], [two]), ([two], [one, again])):
        with pytest.raises(NotComparableError, match="a copy is the same run as one"):
            compare_runs(*sides)


def test_enough_runs_are_those_that_can_reach_95_percent() -> None:
    assert [(m, n) for m in range(1, 7) for n in range(m, 7) if enough_runs(m, n)] == [
        (3, 5), (3, 6), (4, 4), (4, 5), (4, 6), (5, 5), (5, 6), (6, 6),
    ]  # fmt: skip


def test_another_machine_is_refused_by_name_unless_overridden() -> None:
    other = measured("elsewhere", host=host(cpu={"model": "Another", "usable_cores": 2}))
    with pytest.raises(NotComparableError, match=r"elsewhere: machine: .*Another.*") as caught:
        compare_runs([measured("one")], [other])
    assert "--anyway" in str(caught.value)
    report = compare_runs([measured("one")], [other], anyway=True)
    assert any("Another" in difference for difference in report.overridden)


def test_one_case_with_other_data_is_left_out_and_the_others_are_compared() -> None:
    one, two = measured("one"), measured("two")
    changed = replace(two, run=with_protocol(two.run, seed=8))
    report = compare_runs([one], [changed])
    assert set(report.left_out) == {CASE} and "seed" in report.left_out[CASE]
    assert {c.case for c in report.comparisons} == {NUMPY}
    report = compare_runs([one], [changed], anyway=True)
    assert not report.left_out and "seed" in report.overridden[0]
    assert {c.case for c in report.comparisons} == {CASE, NUMPY}


def test_a_failed_case_has_no_times_to_compare_even_if_overridden() -> None:
    one, two = measured("one"), measured("two")
    cases = tuple(replace(c, status="failed") if c.case == CASE else c for c in two.run.cases)
    report = compare_runs([one], [replace(two, run=replace(two.run, cases=cases))], anyway=True)
    assert "failed in two" in report.left_out[CASE]


def test_runs_without_a_common_case_are_refused() -> None:
    one, two = measured("one"), measured("two")
    empty = replace(two, run=replace(two.run, cases=()))
    for anyway in (False, True):  # which cannot help, so it is not recommended
        with pytest.raises(NotComparableError, match="No case is comparable") as caught:
            compare_runs([one], [empty], anyway=anyway)
        assert "--anyway" not in str(caught.value)


def test_versions_that_changed_are_listed() -> None:
    packages = {**HOST["packages"], "jax": "0.11.0"}
    del packages["torch"]
    report = compare_runs([measured("one")], [measured("two", host=host(packages=packages))])
    assert report.changed == ("jax 0.10.2 → 0.11.0", "torch 2.13.0 → absent")


def test_the_same_run_on_both_sides_is_warned_of() -> None:
    one = measured("one")
    assert any("same run" in w for w in compare_runs([one], [one]).warnings)


def test_counts_that_changed_are_listed() -> None:
    def with_compiles(m: Measured, count: int) -> Measured:
        samples: list[Sample] = [replace(s, counts={"compiles": count}) for s in m.samples]
        return replace(m, samples=samples)

    report = compare_runs([with_compiles(measured("one"), 3)], [with_compiles(measured("two"), 5)])
    assert {(c.case, c.base, c.head, c.verdict) for c in report.counts} == {
        (CASE, 3, 5, "regression"),
        (NUMPY, 3, 5, "regression"),
    }


def test_processes_at_two_speeds_have_no_number_and_no_verdict() -> None:
    one, two = measured("one"), measured("two")

    def two_speeds(m: Measured) -> Measured:
        samples = [
            replace(
                s, warm=replace(s.warm, call_seconds=tuple(200 * c for c in s.warm.call_seconds))
            )
            if s.warm is not None and s.index % 2
            else s
            for s in m.samples
        ]
        return replace(m, samples=samples)

    report = compare_runs([two_speeds(one)], [two_speeds(two)])
    (found,) = [
        c for c in report.comparisons if (c.case, c.quantity) == (CASE, "warm_call_seconds")
    ]
    assert not found.gated and "fold" in (found.reason or "")
