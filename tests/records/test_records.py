from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from firstlight import records
from firstlight.records import (
    CaseSummary,
    Estimate,
    MalformedRecordError,
    NewerSchemaError,
    RecordError,
    Run,
    Sample,
    WarmEstimate,
    from_json,
    to_json,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"


def sample(index: int = 0) -> Sample:
    return Sample("w[s]/numpy/none", "timed", index, index, records.now(), "ok")


def test_every_version_of_the_schema_that_was_published_can_still_be_read() -> None:
    run = records.load_run(FIXTURES / "run-1.json")
    assert run.schema_version == 1 and len(run.cases) >= 2
    assert any(case.cold_seconds is not None for case in run.cases)


def test_a_run_survives_json(tmp_path: Path) -> None:
    run = records.load_run(FIXTURES / "run-1.json")
    records.write_json(tmp_path / "run.json", run, schema="run-1.schema.json")
    assert records.load_run(tmp_path) == run


def test_a_plan_is_written_as_it_was_read_byte_by_byte(tmp_path: Path) -> None:
    path = FIXTURES / "plan-1.json"
    plan = records.load_plan(path)
    assert [case.id for case in plan.cases] == ["saxpy[small]/numpy/none"]
    assert plan.settings.processes == 2 and plan.settings.affinity is None
    records.write_json(tmp_path / "plan.json", plan)
    assert (tmp_path / "plan.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "change", [{"cases": 5}, {"cases": [5]}, {"settings": []}, {"schema": "another"}]
)
def test_a_file_that_is_not_a_plan_is_refused_by_name(
    tmp_path: Path, change: dict[str, object]
) -> None:
    plain = json.loads((FIXTURES / "plan-1.json").read_text())
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plain, **change}))
    with pytest.raises(MalformedRecordError, match=r"plan\.json: .*(not a valid value|schema)"):
        records.load_plan(path)


def test_the_class_of_a_warm_estimate_has_its_published_name() -> None:
    plain = to_json(WarmEstimate(1.0, 0.9, 1.1, 6, 0.97, "warmup"))
    assert plain["class"] == "warmup" and "steady_class" not in plain
    assert from_json(WarmEstimate, plain).steady_class == "warmup"


def test_unknown_fields_are_ignored_and_missing_ones_are_named() -> None:
    plain = {**to_json(Estimate(1.0, 0.9, 1.1, 6, 0.97)), "added_in_2031": 5}
    assert from_json(Estimate, plain).n == 6
    with pytest.raises(MalformedRecordError, match="median"):
        from_json(Estimate, {"low": 1.0})


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    data = json.loads((FIXTURES / "run-1.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**data, "schema_version": 99}))
    with pytest.raises(NewerSchemaError, match="Update Firstlight"):
        records.load_run(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"schema": "other"}', "\x00\x01"])
def test_a_file_that_is_not_a_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(MalformedRecordError):
        records.load_run(tmp_path)


def test_the_error_of_a_missing_run_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="run directory"):
        records.load_run(tmp_path / "nothing")


def test_a_number_without_a_protocol_cannot_be_written(tmp_path: Path) -> None:
    run = records.load_run(FIXTURES / "run-1.json")
    timed = next(case for case in run.cases if case.cold_seconds)
    naked = CaseSummary(**{**vars(timed), "protocol": None})
    broken = Run(**{**vars(run), "cases": (naked,)})
    with pytest.raises(MalformedRecordError, match="run-1"):
        records.write_json(tmp_path / "run.json", broken, schema="run-1.schema.json")
    assert not (tmp_path / "run.json").exists()


def test_a_failed_case_with_a_timing_cannot_be_written(tmp_path: Path) -> None:
    run = records.load_run(FIXTURES / "run-1.json")
    timed = next(case for case in run.cases if case.cold_seconds)
    wrong = CaseSummary(**{**vars(timed), "status": "failed"})
    with pytest.raises(MalformedRecordError):
        records.write_json(
            tmp_path / "run.json",
            Run(**{**vars(run), "cases": (wrong,)}),
            schema="run-1.schema.json",
        )


def test_nan_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        records.write_json(tmp_path / "x.json", {"a": math.nan})
    assert list(tmp_path.iterdir()) == []


def test_samples_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    for index in range(3):
        records.append_sample(path, sample(index))
    assert [s.index for s in records.load_samples(path)] == [0, 1, 2]


def test_a_torn_last_line_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    records.append_sample(path, sample())
    with path.open("a") as file:
        file.write('{"case": "w[s]/nu')
    assert len(list(records.load_samples(path))) == 1


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    records.append_sample(path, sample())
    with path.open("a") as file:
        file.write("garbage\n")
    records.append_sample(path, sample(1))
    with pytest.raises(MalformedRecordError, match="line 2"):
        list(records.load_samples(path))
