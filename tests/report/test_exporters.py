"""What other tools read: checked with those tools where they can be had."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyperf
import pytest
from synthetic import rich

from firstlight.report.exporters import (
    csv_text,
    github_action_benchmark_json,
    harmless,
    pyperf_json,
)
from firstlight.snapshot.tables import cases_csv

RUN, SAMPLES = rich()
OK = [case for case in RUN.cases if case.status == "ok" and case.protocol]


def test_pyperf_reads_what_is_written_for_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(pyperf_json(RUN, SAMPLES))
    suite = pyperf.BenchmarkSuite.load(str(path))
    assert suite.get_benchmark_names()
    for case in OK:
        benchmark = suite.get_benchmark(f"{case.case} (cold)")
        assert case.cold_seconds is not None
        assert benchmark.get_nrun() == case.cold_seconds.n
        assert benchmark.median() == pytest.approx(case.cold_seconds.median)


def test_csv_has_a_row_for_every_timed_process_and_its_phases_add_up() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(RUN, SAMPLES))))
    known = {case.case for case in RUN.cases if case.protocol}
    assert len(rows) == sum(s.kind == "timed" and s.case in known for s in SAMPLES)
    for row in rows:
        if row["total_seconds"]:
            parts = [float(v) for k, v in row.items() if k.endswith("_seconds") and v]
            total, warm = float(row["total_seconds"]), row["warm_call_median_seconds"]
            assert sum(parts) - total - float(warm or 0) == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("name", ["=1+2", "+1", "-1", "@sum", "\t=1"])
def test_no_name_is_a_formula_in_a_spreadsheet(name: str) -> None:
    """A spreadsheet computes cells whose first character is one of these."""
    case = replace(OK[0], workload=name, size=name)
    samples = [s for s in SAMPLES if s.case == case.case]
    text = csv_text(replace(RUN, cases=(case,)), samples)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["workload"] for row in rows} == {row["size"] for row in rows} == {f"'{name}"}
    assert all(float(row["total_seconds"]) > 0 for row in rows)
    raw: Any = SimpleNamespace(folder="runs/001", run=replace(RUN, cases=(case,)))
    (published,) = csv.DictReader(io.StringIO(cases_csv([raw]).decode(), newline=""))
    assert published["workload"] == f"'{name}"
    assert harmless([-1.5, None, 3, "plain"]) == [-1.5, None, 3, "plain"]


def test_a_carriage_return_in_a_name_does_not_begin_a_row() -> None:
    case = replace(OK[0], workload='a\r=HYPERLINK("x")', size="\r=1")
    samples = [s for s in SAMPLES if s.case == case.case]
    text = csv_text(replace(RUN, cases=(case,)), samples)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == sum(s.kind == "timed" for s in samples)
    assert {row["workload"] for row in rows} == {'a\\r=HYPERLINK("x")'}
    assert {row["size"] for row in rows} == {"'\\r=1"}


def test_github_action_benchmark_gets_medians_with_their_unit() -> None:
    entries = json.loads(github_action_benchmark_json(RUN, SAMPLES))
    by_name = {entry["name"]: entry for entry in entries}
    for case in OK:
        assert case.cold_seconds is not None
        entry = by_name[f"{case.case} (cold)"]
        assert entry["value"] == case.cold_seconds.median and entry["unit"] == "seconds"


def test_cases_that_are_not_ok_are_not_exported() -> None:
    bad = {case.case for case in RUN.cases if case.status != "ok"}
    assert bad
    names = {
        e["name"].rsplit(" (", 1)[0] for e in json.loads(github_action_benchmark_json(RUN, SAMPLES))
    }
    assert not bad & names
