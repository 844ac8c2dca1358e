"""Finished pieces in a folder: what is taken up, what is refused. No Ray is needed."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firstlight import cluster
from firstlight import histfactory as hf
from firstlight.cli import main
from firstlight.cluster import checkpoint as folder
from firstlight.cluster.errors import CheckpointError
from firstlight.cluster.jobs import ToyJob, cut
from firstlight.histfactory.toy_fits import ToyFits, plan_toys


@pytest.fixture(autouse=True)
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is worth compiling for so few fits, also for those of all tests together."""
    monkeypatch.setattr("firstlight.histfactory.programs.PATIENCE", float("inf"))


@pytest.fixture(scope="module")
def model(workspace: Path) -> hf.Model:
    return hf.load(workspace)


@pytest.fixture
def interrupted(
    model: hf.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Path]:
    """A checkpoint of 40 toys in pieces of 8, interrupted after the second piece."""
    monkeypatch.setattr("firstlight.cluster.fits.TOYS_PER_PIECE", 8)

    def make() -> Path:
        def stop(done: int, of: int) -> None:
            if done == 16:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cluster.toys(model, 40, 7, checkpoint=tmp_path / "toys", progress=stop)
        return tmp_path / "toys"

    return make


def test_toys_are_the_same_however_they_are_cut(model: hf.Model) -> None:
    fits = plan_toys(model, 40, 5)
    whole = fits.fit(0, 40)
    for begin, end in ((0, 1), (12, 14), (25, 40)):
        part = fits.fit(begin, end)
        assert np.array_equal(part.values, whole.values[begin:end])
        assert np.array_equal(part.data, whole.data[begin:end])


def test_toys_do_not_depend_on_what_was_compiled_before(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a process that has compiled fits, a checkpoint of another process must still fit.
    systematics = [make.normsys(f"n{i}", 0.9, 1.07) for i in range(5)]
    other = hf.load(make.counting([5.0, 9.0], [50.0, 61.3], [52.0, 63.0], *systematics))
    before = plan_toys(other, 5).source
    monkeypatch.setattr("firstlight.histfactory.programs._AT_ONCE", {other.about.kind})
    after = plan_toys(other, 5).source
    assert np.array_equal(before.theta, after.theta) and np.array_equal(before.main, after.main)


def test_the_first_toys_do_not_depend_on_their_number(model: hf.Model) -> None:
    few, many = hf.toys(model, 5, 3), hf.toys(model, 12, 3)
    assert np.array_equal(few.data, many.data[:5])


def test_an_interrupted_checkpoint_is_finished_without_computing_a_piece_twice(
    model: hf.Model, interrupted: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, computed = interrupted(), []
    fit = ToyFits.fit

    def noted(self: ToyFits, begin: int, end: int, progress: Any = None) -> Any:
        computed.append(begin)
        return fit(self, begin, end, progress)

    monkeypatch.setattr(ToyFits, "fit", noted)
    found = cluster.toys(model, 40, 7, checkpoint=path, resume=True)
    assert computed == [16, 24, 32]
    monkeypatch.undo()
    expected = hf.toys(model, 40, 7)
    for name in ("values", "nll", "status_code", "edm", "branches", "data"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize(
    ("n", "key", "mu", "part"),
    [(40, 8, None, "seed"), (41, 7, None, "toys"), (40, 7, 1.5, "drawn")],
)
def test_a_checkpoint_of_other_toys_is_refused_and_what_differs_is_named(
    model: hf.Model,
    interrupted: Callable[[], Path],
    n: int,
    key: int,
    mu: float | None,
    part: str,
) -> None:
    path = interrupted()
    with pytest.raises(CheckpointError, match=f"something else.*{part}"):
        cluster.toys(model, n, key, mu=mu, checkpoint=path, resume=True)


def test_a_checkpoint_of_another_model_is_refused(
    model: hf.Model, make: Any, interrupted: Callable[[], Path]
) -> None:
    other = hf.load(make.counting([5.0], [50.0], [52.0], make.normsys("xsec", 0.9, 1.1)))
    path = interrupted()
    with pytest.raises(CheckpointError, match=r"something else.*model"):
        cluster.toys(other, 40, 7, checkpoint=path, resume=True)


def test_a_damaged_piece_is_named_and_can_be_computed_again(
    model: hf.Model, interrupted: Callable[[], Path]
) -> None:
    path = interrupted()
    piece = path / "piece-000001.npz"
    piece.write_bytes(piece.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"piece-000001.npz is damaged.*Delete this file"):
        cluster.toys(model, 40, 7, checkpoint=path, resume=True)
    piece.unlink()
    found = cluster.toys(model, 40, 7, checkpoint=path, resume=True)
    assert np.array_equal(found.values, hf.toys(model, 40, 7).values)


def test_a_piece_of_another_checkpoint_is_refused(
    model: hf.Model, interrupted: Callable[[], Path], tmp_path: Path
) -> None:
    path = interrupted()
    cluster.toys(model, 40, 8, checkpoint=tmp_path / "other")
    (path / "piece-000002.npz").write_bytes((tmp_path / "other/piece-000002.npz").read_bytes())
    with pytest.raises(CheckpointError, match=r"piece-000002.npz.*another checkpoint"):
        cluster.toys(model, 40, 7, checkpoint=path, resume=True)


def test_a_piece_left_unfinished_by_a_kill_is_computed_again(
    model: hf.Model, interrupted: Callable[[], Path]
) -> None:
    path = interrupted()
    torn = path / ".piece-000003.npz.99.tmp"
    torn.write_bytes(b"half of a piece")
    found = cluster.toys(model, 40, 7, checkpoint=path, resume=True)
    assert np.array_equal(found.values, hf.toys(model, 40, 7).values) and not torn.exists()


def test_a_checkpoint_needs_an_empty_folder(model: hf.Model, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="exists and is not empty"):
        cluster.toys(model, 8, checkpoint=tmp_path)


def test_two_processes_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    held = folder.Checkpoint(tmp_path / "c", {"work": "w"}, resume=False)
    with pytest.raises(CheckpointError, match="another process"):
        folder.Checkpoint(tmp_path / "c", {"work": "w"}, resume=True)
    held.close()


def test_a_full_disk_keeps_what_is_there_and_says_how_to_continue(
    model: hf.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firstlight.cluster.fits.TOYS_PER_PIECE", 8)
    write, written = folder.write_bytes, []

    def full(path: Path, data: bytes) -> None:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        write(path, data)

    monkeypatch.setattr(folder, "write_bytes", full)
    with pytest.raises(CheckpointError, match=r"No space left.*--resume"):
        cluster.toys(model, 40, 7, checkpoint=tmp_path / "c")
    monkeypatch.setattr(folder, "write_bytes", write)
    found = cluster.toys(model, 40, 7, checkpoint=tmp_path / "c", resume=True)
    assert np.array_equal(found.values, hf.toys(model, 40, 7).values)


def test_the_command_continues_a_checkpoint_and_prints_the_same_json(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["hf", "toys", str(workspace), "-n", "20", "--seed", "2", "--json"]
    assert main(command) == 0
    expected = capsys.readouterr().out
    assert main([*command, "--checkpoint", str(tmp_path / "c")]) == 0
    assert capsys.readouterr().out == expected
    assert main([*command, "--checkpoint", str(tmp_path / "c"), "--resume"]) == 0
    assert capsys.readouterr().out == expected
    assert main([*command, "--resume"]) == 2
    assert "--resume needs --checkpoint" in capsys.readouterr().err


def test_all_patches_have_the_limits_that_each_has_alone(
    mass_scan: tuple[Path, Path, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    workspace, patchset, patched = mass_scan
    command = ["hf", "limit", str(workspace), "--all-patches", str(patchset)]
    command += ["--checkpoint", str(tmp_path / "c")]
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["limits"]
    assert [row["patch"] for row in rows] == list(patched)
    for row, content in zip(rows, patched.values(), strict=True):
        alone = hf.upper_limit(hf.load(content))
        assert row["observed"] == pytest.approx(alone.observed, rel=1e-7)
        assert row["expected"] == pytest.approx(alone.expected.tolist(), rel=1e-7)
    assert main([*command, "--resume"]) == 0
    assert "m300" in capsys.readouterr().out


def test_pieces_cover_every_item_once_and_end_with_their_part() -> None:
    pieces = cut([5, 3], 2)
    assert [p.number for p in pieces] == list(range(5))
    covered = [(p.part, i) for p in pieces for i in range(p.begin, p.end)]
    assert covered == [(0, i) for i in range(5)] + [(1, i) for i in range(3)]


def test_the_identity_of_a_job_does_not_depend_on_the_process(model: hf.Model) -> None:
    fits = plan_toys(model, 10, 1)
    assert ToyJob(fits).identity() == ToyJob(plan_toys(model, 10, 1)).identity()
