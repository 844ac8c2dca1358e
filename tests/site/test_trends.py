"""Series over time: what is joined, what never is, and how steps are described."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from site_store import CASES, OTHER_CPU, SLOW_FROM, World, make_run

from firstlight.compare.differences import differences
from firstlight.records import Run, slug
from firstlight.site import snapshot_facts
from firstlight.site.snapshot_facts import facts_of
from firstlight.site.trends import Point, TrendPoints, marked_steps
from firstlight.snapshot.opening import open_snapshot
from firstlight.statistics.run_summaries import load

CASE = CASES[1].id


def keys(run: Run, case: str) -> str:
    summary = next(c for c in run.cases if c.case == case)
    own = snapshot_facts.case_conditions(summary, "00")
    assert own is not None
    return snapshot_facts.series_key(snapshot_facts.run_conditions(run), own)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(make_run(tmp_path_factory.mktemp("trend") / "run", 0))[0]


def with_host(run: Run, **host: Any) -> Run:
    return replace(run, host={**run.host, **host})


def with_protocol(run: Run, **fields: Any) -> Run:
    cases = tuple(
        replace(c, protocol=replace(c.protocol, **fields)) for c in run.cases if c.protocol
    )
    return replace(run, cases=cases)


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run,
        lambda run: with_host(run, packages={"jax": "9.9"}),
        lambda run: with_host(run, load=[9, 9, 9]),
        lambda run: with_host(run, environment={"OMP_NUM_THREADS": "8", "PYTHONPATH": "/x"}),
        lambda run: with_host(run, environment={"OMP_NUM_THREADS": "2"}),
        lambda run: with_host(run, cpu=OTHER_CPU),
        lambda run: with_host(run, memory_bytes=run.host["memory_bytes"] * 4),
        lambda run: replace(run, settings={**run.settings, "warm_seconds": 9.0}),
        lambda run: replace(run, settings={**run.settings, "processes": 99}),
        lambda run: with_protocol(run, threads={"cpus": 2}),
        lambda run: with_protocol(run, parameters={"n": 65}),
        lambda run: with_protocol(run, sync="another"),
        lambda run: with_protocol(run, bytecode="none"),
        lambda run: with_protocol(run, seed=8),
    ],
)
def test_runs_have_one_key_exactly_if_the_gate_would_compare_them(run: Run, change: Any) -> None:
    other = change(run)
    comparable = differences(run, other, CASE) == []
    assert (keys(run, CASE) == keys(other, CASE)) is comparable


def test_other_data_of_the_same_shape_are_not_joined(run: Run) -> None:
    summary = run.cases[0]
    one, other = (snapshot_facts.case_conditions(summary, digest) for digest in ("00", "01"))
    assert one and other
    shared = snapshot_facts.run_conditions(run)
    assert snapshot_facts.series_key(shared, one) != snapshot_facts.series_key(shared, other)


def test_every_machine_has_its_own_line(world: World) -> None:
    page = (world.site / "trends" / f"{slug(CASE)}.html").read_text()
    headings = re.findall(r'class="series-of"[^>]*><h2>([^<]*)', page)
    assert [h.split(" / ")[0] for h in headings] == ["Made-up CPU", "Other CPU"]
    many, single = page.split('class="series-of"')[1:]
    joined = re.search(r'<path d="([^"]*)" class="joined"/>', many)
    assert joined and joined[1].count("L") + 1 == 23  # twelve nights and eleven runs
    assert "<svg" not in single and "1 run<" in single  # one run on the other machine is no trend


def test_a_step_is_marked_with_its_interval_and_the_version_that_changed(world: World) -> None:
    collected = TrendPoints()
    for i in range(12):
        snapshot = open_snapshot(world.store / world.ids[f"nightly {i}"])
        collected.add(facts_of(snapshot, [snapshot.samples(0)]))
    (series,) = collected.series(CASE)
    for curve in series.curves:
        if curve.quantity != "compile":  # six noisy values per run may hide it
            (step,) = curve.steps
            assert step.index == SLOW_FROM
            assert step.effect.low < 1.4 < step.effect.high
            assert step.changed == ("jax 0.10.2 → 0.11.0",)
    assert collected.series(CASES[0].id)[0].curves[0].steps == ()
    page = (world.site / "trends" / f"{slug(CASE)}.html").read_text()
    assert "jax 0.10.2 → 0.11.0" in page


def test_levels_on_both_sides_of_a_step_give_its_size_by_closed_form() -> None:
    values = [1.0, 1.01, 0.99, 1.02, 0.98] * 2 + [2.0, 2.02, 1.98, 2.04, 1.96] * 2
    points = [Point(f"{i:064x}", i * 86400.0, v, v, v, 6, {}) for i, v in enumerate(values)]
    (step,) = marked_steps(points)
    assert step.index == 10 and step.changed == ()
    assert step.effect.ratio == pytest.approx(2.0, rel=1e-3)
    assert step.effect.low <= 2.0 <= step.effect.high


def test_a_run_that_was_published_twice_is_one_point(world: World) -> None:
    snapshot = open_snapshot(world.store / world.ids["nightly 0"])
    facts = facts_of(snapshot, [snapshot.samples(0)])
    collected = TrendPoints()
    for identity in ("b" * 64, "a" * 64):
        collected.add({**facts, "id": identity})
    (series,) = collected.series(CASE)
    assert series.runs == 1
    assert series.curves[0].points[0].snapshot == "a" * 64


def test_a_forged_run_does_not_replace_the_point_of_another(world: World) -> None:
    """The id and the hash of a run can be claimed after redaction; its values must agree too."""
    snapshot = open_snapshot(world.store / world.ids["nightly 0"])
    facts = facts_of(snapshot, [snapshot.samples(0)])
    forged = copy.deepcopy(facts)
    for run in forged["runs"]:
        for point in run["cases"][CASE]["points"].values():
            point.update({name: point[name] / 10 for name in ("median", "low", "high")})
    collected = TrendPoints()
    collected.add({**facts, "id": "b" * 64}, "trusted")
    collected.add({**forged, "id": "a" * 64}, "none")
    (series,) = collected.series(CASE)
    assert {p.snapshot for p in series.curves[0].points} == {"a" * 64, "b" * 64}


def test_of_two_snapshots_of_the_same_run_the_better_signed_is_linked(world: World) -> None:
    snapshot = open_snapshot(world.store / world.ids["nightly 0"])
    facts = facts_of(snapshot, [snapshot.samples(0)])
    publishers = {"none": "a" * 64, "valid": "b" * 64, "trusted": "c" * 64}
    for best in (("none", "valid", "trusted"), ("trusted", "valid", "none"), ("valid", "none")):
        collected = TrendPoints()
        for signature in best:
            collected.add({**facts, "id": publishers[signature]}, signature)
        (series,) = collected.series(CASE)
        wanted = "trusted" if "trusted" in best else "valid"
        assert [p.snapshot for p in series.curves[0].points] == [publishers[wanted]]


def test_a_case_without_a_quotable_number_has_no_point(world: World, tmp_path: Path) -> None:
    snapshot = open_snapshot(world.store / world.ids["nightly 0"])
    failed = replace(
        snapshot.runs[0],
        cases=tuple(replace(c, status="unproven") for c in snapshot.runs[0].cases),
    )
    facts = facts_of(replace(snapshot, runs=(failed,)), [snapshot.samples(0)])
    collected = TrendPoints()
    collected.add(facts)
    assert collected.cases() == []
    json.dumps(facts, allow_nan=False)
