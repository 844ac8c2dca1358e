"""Every example runs as its docstring says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("bench_*.py"))


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_measured_and_every_case_is_ok(
    firstlight: Callable[..., subprocess.CompletedProcess[str]], path: Path, tmp_path: Path
) -> None:
    done = firstlight("run", path, "--quick", "-p", 1, "--out", "out")
    assert done.returncode == 0, done.stderr + done.stdout
    cases = json.loads((tmp_path / "out" / "run.json").read_text())["cases"]
    assert cases and all(case["status"] == "ok" for case in cases)


def test_the_trace_of_slow_start_finds_what_its_comments_say(
    firstlight: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    script = Path(__file__).parent.parent / "examples" / "slow_start.py"
    done = firstlight("trace", "--json", "found.json", script)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    lines = script.read_text().splitlines()
    where = {
        f["kind"]: lines[int(f["location"].rpartition(":")[2]) - 1]
        for f in found["findings"]
        if f["location"]
    }
    assert "slope - RATE" in where["unrolled-loop"]
    assert "fit(slope, x" in where["shape-recompiles"]
    assert "moment(x)" in where["new-function-recompiles"]


def test_the_training_example_prints_both_significances_and_draws(tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "examples" / "train_on_significance.py"
    short = ["--seeds", "2", "--epochs", "22", "--output", str(tmp_path / "plots")]
    done = subprocess.run(
        [sys.executable, str(script), *short],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plain, trained = (
        float(line.split("Z0 = ")[1].split()[0]) for line in done.stdout.splitlines()[:2]
    )
    # Two epochs on significance after twenty of cross-entropy are better than two more of those.
    assert 1.0 < plain < trained < 4.0, done.stdout
    for name in ("scores.png", "significance_per_epoch.png"):
        assert (tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG")


def test_the_training_on_ranks_improves_and_keeps_the_networks_equal() -> None:
    script = Path(__file__).parent.parent / "examples" / "train_on_ranks.py"
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, "-m", *launch, str(script), "--epochs", "12"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "networks equal: True" in done.stdout
    before, after = (float(x) for x in re.findall(r"\d+\.\d+", done.stdout))
    assert after > before
