from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.records import append_sample, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from synthetic import Plan, make_run  # type: ignore[import-not-found]

Firstlight = Callable[..., "subprocess.CompletedProcess[str]"]


def write_run(folder: Path, speed: float = 1.0, model: str | None = None) -> Path:
    """A run directory as `firstlight run` leaves it."""
    run, samples = make_run(
        [
            Plan("mlp_train", "small", "numpy", processes=8),
            Plan("mlp_train", "small", "jax-jit", processes=8, speed=speed),
        ],
        id=folder.name,
    )
    if model:
        run = replace(run, host={**run.host, "cpu": {**run.host["cpu"], "model": model}})
    folder.mkdir(parents=True)
    write_json(folder / "run.json", run)
    for sample in samples:
        append_sample(folder / "samples.jsonl", sample)
    return folder


def test_two_runs_give_a_table_with_effects_and_a_warning_of_drift(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head", 1.5)
    assert main(["compare", str(base), str(head)]) == 0
    printed = capsys.readouterr().out
    row = next(line for line in printed.splitlines() if "regression" in line)
    assert "warm_call_seconds" in row and "+50." in row
    assert "cannot show how far two jobs drift apart" in " ".join(printed.split())
    assert "first_execute" not in printed
    assert main(["compare", str(base), str(head), "--all"]) == 0
    assert "first_execute" in capsys.readouterr().out


def test_json_has_effect_interval_and_p_of_every_case_and_phase(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head", 1.5)
    assert main(["compare", str(base), str(head), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["unit"]) == ("firstlight.comparison", "process")
    found = {(c["case"], c["quantity"]): c for c in report["comparisons"]}
    assert {"cold_seconds", "compile", "import", "warm_call_seconds"} <= {q for _, q in found}
    effect = found["mlp_train[small]/jax-jit/none", "warm_call_seconds"]["effect"]
    assert effect["low"] < 1.5 < effect["high"] and effect["p"] < 0.01


def test_another_machine_is_refused_with_exit_2_and_allowed_with_anyway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head", model="Other CPU")
    assert main(["compare", str(base), str(head)]) == 2
    refused = capsys.readouterr()
    assert "Other CPU" in refused.err and "--anyway" in refused.err and not refused.out
    assert main(["compare", str(base), str(head), "--anyway"]) == 0
    assert "Compared anyway" in capsys.readouterr().out


def test_several_runs_of_each_side_are_compared_by_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [
        [str(write_run(tmp_path / f"{side}-{i}", speed * (1 + i / 100))) for i in range(5)]
        for side, speed in (("base", 1.0), ("head", 1.3))
    ]
    assert main(["compare", *sides[0], "--head", *sides[1], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["unit"], len(report["base"]), report["warnings"]) == ("run", 5, [])
    verdicts = {c["verdict"] for c in report["comparisons"] if c["quantity"] == "warm_call_seconds"}
    assert verdicts == {"regression", "same"}  # the other case is not slower


def test_the_same_run_twice_on_a_side_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head")
    copy = shutil.copytree(base, tmp_path / "copy")
    assert main(["compare", str(base), str(copy), "--head", str(head)]) == 2
    assert "the same run as" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 3])
def test_one_run_or_three_are_refused_without_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    runs = [str(write_run(tmp_path / str(i))) for i in range(count)]
    assert main(["compare", *runs]) == 2
    assert "--head" in capsys.readouterr().err


def test_a_missing_run_and_a_folder_without_one_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "base")
    assert main(["compare", str(base), str(tmp_path / "nowhere")]) == 2
    assert "no such run or snapshot" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["compare", str(base), str(tmp_path / "empty")]) == 2
    assert "empty" in capsys.readouterr().err


def test_a_run_without_its_samples_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head")
    (head / "samples.jsonl").unlink()
    assert main(["compare", str(base), str(head)]) == 2
    assert "samples" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "gate"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("3", "for 3 per cent write 0.03 or 3%"),
        ("1", "for 1 per cent write 0.01 or 1%"),
        ("0", "must be between 0 and 1"),
        ("300%", "must be between 0 and 1"),
    ],
)
def test_a_percentage_as_minimum_effect_is_refused_with_how_to_write_it(
    command: str, given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "base", "head", "--minimum-effect", given])
    assert stopped.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("given", ["0.04", "4%"])
def test_a_minimum_effect_is_recorded_as_a_share(
    given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head")
    assert main(["compare", str(base), str(head), "--minimum-effect", given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["minimum_effect"] == 0.04


def test_a_moved_run_compares_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head", 1.5)
    main(["compare", str(base), str(head), "--json"])
    before = json.loads(capsys.readouterr().out)["comparisons"]
    moved = shutil.move(head, tmp_path / "elsewhere")
    main(["compare", str(base), str(moved), "--json"])
    assert json.loads(capsys.readouterr().out)["comparisons"] == before


def test_a_case_name_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, head = write_run(tmp_path / "base"), write_run(tmp_path / "head")
    for folder in (base, head):
        for name in ("run.json", "samples.jsonl"):
            text = (folder / name).read_text()
            (folder / name).write_text(text.replace("mlp_train[small]/numpy", r"\u001b[31m[red]x"))
    assert main(["compare", str(base), str(head)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b[31m" not in printed and "[red]x" in printed


def test_a_snapshot_compares_like_the_run_it_was_made_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "r"
    measure = ["run", "matmul", "--backend", "numpy", "-b", "small", "--quick", "-p", "2"]
    assert main([*measure, "--out", str(run)]) == 0
    assert main(["publish", str(run), "--out", str(tmp_path / "published")]) == 0
    (snapshot,) = (p for p in (tmp_path / "published").iterdir() if (p / "index.json").exists())
    capsys.readouterr()
    found = []
    for head in (run, snapshot):
        assert main(["compare", str(run), str(head), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["comparisons"])
    assert found[0] == found[1] and not found[0][0]["can_be_significant"]  # two processes a side
    # A file that comparing does not even read: the whole snapshot is verified.
    (snapshot / "tables" / "cases.csv").write_text("edited")
    assert main(["compare", str(run), str(snapshot)]) == 2
    assert "is not the file listed in the index" in capsys.readouterr().err
