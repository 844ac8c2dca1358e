"""`firstlight replicate` on a real, small run: measured, published, measured again."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from firstlight.cli import main
from firstlight.snapshot.keys import generate, load_private
from firstlight.snapshot.publishing import Wishes, publish
from firstlight.snapshot.storage import LocalStore

sys.path.insert(0, str(Path(__file__).parents[1] / "snapshot"))
import made_up_run

OWN = """
import firstlight
import numpy as np

@firstlight.bench(backend="numpy", sizes={"tiny": {"n": 8}})
def total(n=8):
    x = np.ones(n)
    return (lambda x: x.sum()), (x,)
"""


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of two real runs: a NumPy case of the catalogue, and one in a user's file."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "bench_own.py").write_text(OWN)
    for target, out in (("matmul", "one"), (str(folder / "bench_own.py"), "two")):
        sizes = ["-b", "small"] if target == "matmul" else []
        assert main(["run", target, "--backend", "numpy", *sizes, "--quick", "-p", "1",
                     "--out", str(folder / out)]) == 0  # fmt: skip
    wishes = Wishes(redact=(str(folder),), with_source=False)
    done = publish([folder / "one", folder / "two"], LocalStore(folder / "store"), wishes)
    return Path(done.location)


@pytest.mark.slow
def test_a_real_run_is_measured_again_signed_and_checked(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path / "key.pem")
    out = tmp_path / "out"
    code = main(["replicate", str(real), "--out", str(out), "--key", str(tmp_path / "key.pem")])
    told = capsys.readouterr()
    report = json.loads((out / "replication.json").read_text())
    assert code == 3  # one process per side decides nothing, and nothing is wrong
    assert report["snapshot"]["id"] == real.name
    (case,) = report["cases"]
    assert case["verdict"] == "undecided" and "too few" in told.out
    assert case["correctness_here"]["passed"] and case["correctness_published"]["passed"]
    quantities = [d["quantity"] for d in case["deltas"]]
    assert {"cold_seconds", "import", "first_execute", "warm_call_seconds"} <= {*quantities}
    # The publisher's own file is not in this installation: reported, not run.
    (left,) = report["left_out"]
    assert "bench_own.py" in left["reason"] and "--file" in left["reason"]
    assert "bench_own.py" in told.err
    assert (out / "runs/001/report.html").is_file() and not (out / "runs/002").exists()
    assert "undecided" in (out / "replication.html").read_text()
    assert main(["replicate", "--check", str(out)]) == 0
    assert f"signed with the key {load_private(tmp_path / 'key.pem').public.id}" in (
        capsys.readouterr().out
    )
    check = ["replicate", "--check", str(out), str(real), "--id"]
    assert main([*check, real.name]) == 0
    assert "follow from the snapshot and runs" in capsys.readouterr().out
    assert main([*check, "0" * 64]) == 1
    assert "is about the snapshot" in capsys.readouterr().out
    path = out / "replication.json"
    path.write_text(path.read_text().replace('"undecided"', '"agrees"', 1))
    assert main(["replicate", "--check", str(out)]) == 1
    assert "FINDING" in capsys.readouterr().out


def test_a_revoked_key_signs_no_replication_and_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = generate(tmp_path / "key.pem")
    assert main(["keys", "trust", key.base64, "--name", "Me"]) == 0
    assert main(["keys", "revoke", key.id]) == 0
    asked = ["replicate", "no-such-snapshot", "--out", "out", "--key", str(tmp_path / "key.pem")]
    assert main(asked) == 2
    assert "is revoked and can no longer sign" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_publishers_file_runs_only_if_named_and_unchanged(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "mine.py"
    own.write_text(OWN + "\n# changed\n")
    options = ["replicate", str(real), "-b", "total", "--out", str(tmp_path / "out")]
    assert main([*options, "--file", str(own)]) == 2
    assert "its hash must match" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    own.write_text(OWN)
    assert main([*options, "--file", str(own), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [c["case"] for c in report["cases"]] == ["total[tiny]/numpy/none"]
    assert report["cases"][0]["status_here"] == "ok"
    assert report["runs"][0]["folder"] == "runs/002"


def test_a_damaged_snapshot_is_refused_before_anything_runs(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(real, tmp_path / real.name)
    (copy / "snippet.md").write_text("better numbers")
    assert main(["replicate", str(copy), "--out", str(tmp_path / "out")]) == 2
    assert "does not verify" in capsys.readouterr().err
    wrong = ["replicate", str(real), "--id", "0" * 64, "--out", str(tmp_path / "out")]
    assert main(wrong) == 2
    assert not (tmp_path / "out").exists()


def test_the_program_named_in_a_snapshot_is_never_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # made_up_run's cases say program "made.up:matmul": the catalogue's matmul is another one.
    run = made_up_run.make_run(tmp_path / "run")
    done = publish([run], LocalStore(tmp_path / "store"))
    assert main(["replicate", done.location, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "none of its cases can be measured here" in said and "is another one" in said
    assert "program" in said and not (tmp_path / "out").exists()


def test_a_report_never_overwrites_anything(
    real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    assert main(["replicate", str(real), "--out", str(tmp_path / "out")]) == 2
    assert "Nothing is overwritten" in capsys.readouterr().err


def test_an_interrupted_replication_writes_no_report(
    real: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from firstlight.cli import run

    monkeypatch.setattr(run, "measure", lambda *_: True)
    assert main(["replicate", str(real), "--out", str(tmp_path / "out")]) == 130
    assert not (tmp_path / "out" / "replication.json").exists()
    assert "Interrupted" in capsys.readouterr().err
