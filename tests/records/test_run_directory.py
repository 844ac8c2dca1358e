from __future__ import annotations

from pathlib import Path

import pytest

from firstlight import records
from firstlight.records import OutputError, Sample, write_new
from firstlight.records.run_directory import RunDirectory

PLAN = records.load_plan(Path(__file__).parents[1] / "fixtures" / "plan-1.json")


def sample(index: int) -> Sample:
    return Sample("w[s]/numpy/none", "timed", index, index, records.now(), "ok")


def test_an_existing_output_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(OutputError, match="exists and is not empty"):
        RunDirectory.create(tmp_path, PLAN)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_a_directory_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        RunDirectory.create(tmp_path / "file" / "below", PLAN)


def test_a_full_disk_is_explained_and_loses_nothing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    directory = RunDirectory.create(tmp_path / "run", PLAN)
    directory.keep(sample(0))
    good = directory.samples_path.read_bytes()
    directory.samples_path.rename(tmp_path / "kept")
    directory.samples_path.symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"No space left.*--resume"):
        directory.keep(sample(1))
    directory.samples_path.unlink()
    (tmp_path / "kept").rename(directory.samples_path)
    assert directory.samples_path.read_bytes() == good
    assert [s.index for s in directory.samples()] == [0]
    directory.close()


def test_two_processes_cannot_measure_into_one_directory(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path / "run", PLAN)
    with pytest.raises(OutputError, match="another process"):
        RunDirectory.open(tmp_path / "run")
    first.close()
    RunDirectory.open(tmp_path / "run").close()


def test_a_torn_line_is_cut_before_more_is_appended(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", PLAN)
    directory.keep(sample(0))
    with directory.samples_path.open("a") as file:
        file.write('{"half')
    directory.close()
    again = RunDirectory.open(tmp_path / "run")
    again.keep(sample(1))
    assert [s.index for s in again.samples()] == [0, 1]
    again.close()


def test_a_folder_without_a_plan_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"plan\.json"):
        RunDirectory.open(tmp_path)


def test_exported_files_are_never_overwritten(tmp_path: Path) -> None:
    write_new(tmp_path / "a.csv", "1")
    with pytest.raises(OutputError, match="exists"):
        write_new(tmp_path / "a.csv", "2")
    assert (tmp_path / "a.csv").read_text() == "1"
