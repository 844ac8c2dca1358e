"""Every example runs as its own text says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

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
