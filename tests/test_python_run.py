"""`firstlight.run` as a script or a notebook calls it: one small run, looked at from all sides."""

from __future__ import annotations

import html
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

import firstlight
from firstlight.errors import FirstlightError
from firstlight.records import load_run, load_samples

sys.path.insert(0, str(Path(__file__).parent / "report"))
from synthetic import Plan, make_run  # type: ignore[import-not-found]

BENCH = """
import numpy as np
from firstlight import bench

@bench(workload="square", sizes={"small": {"n": 50}}, reference=lambda n: np.arange(n) ** 2.0)
def square(n):
    return (lambda x: x * x), (np.arange(n, dtype=float),)
"""
CASE = "square[small]/numpy/none"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> firstlight.Run:
    folder = tmp_path_factory.mktemp("python")
    (folder / "bench_square.py").write_text(BENCH)
    return firstlight.run(
        folder / "bench_square.py", processes=2, effort="quick", seed=3, out=folder / "out"
    )


def test_a_run_has_its_summaries_and_the_files_that_the_command_line_writes(
    measured: firstlight.Run,
) -> None:
    assert measured.ok and [case.case for case in measured.cases] == [CASE]
    assert load_run(measured.path) == measured.record
    assert tuple(load_samples(measured.path / "samples.jsonl")) == measured.samples
    assert "<title>Firstlight" in measured.report.read_text("utf-8")
    totals = [s.cold.total_seconds for s in measured.samples if s.cold is not None]
    cold = measured[CASE].cold_seconds
    assert cold is not None and cold.n == len(totals) == 2
    assert cold.median == pytest.approx(statistics.median(totals), rel=1e-12)
    assert measured.record.settings["seed"] == 3
    with pytest.raises(KeyError, match="square"):
        measured["cube[small]/numpy/none"]


def test_a_notebook_shows_the_table_and_the_amortisation_curve() -> None:
    from IPython.core.formatters import DisplayFormatter

    plans = [Plan("mlp_train", "small", backend) for backend in ("numpy", "jax-jit")]
    record, samples = make_run(plans)  # on a busy machine a real one may have no steady call
    shown, _ = DisplayFormatter().format(firstlight.Run(Path("a/b"), record, tuple(samples)))
    page = html.unescape(shown["text/html"])
    assert page.startswith("<iframe") and page.count("mlp_train[small]/jax-jit/none") > 1
    assert "mlp_train [small]: total seconds against the number of calls" in page
    assert "default-src 'none'" in page and "script-src" not in page
    text = shown["text/plain"]
    assert "first result" in text and "numpy" in text and text.endswith("a/b")
    assert max(map(len, text.splitlines())) <= 110 and "\x1b" not in text


def test_a_run_is_loaded_from_its_directory(measured: firstlight.Run) -> None:
    assert firstlight.Run.load(measured.path) == measured


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "nothing"}, "unknown suite or workload 'nothing'"),
        ({"target": "matmul", "backends": ["jaxx"]}, "unknown backend 'jaxx'"),
        ({"target": "matmul", "caches": ["hot"]}, "unknown cache policy 'hot'"),
        ({"target": "matmul", "processes": 0}, "0 processes"),
        ({"target": "matmul", "effort": "much"}, "effort 'much'"),
        ({"target": "matmul", "timeout_seconds": -1.0}, "give a positive number"),
        ({"target": "matmul", "pattern": "["}, "not a regular expression"),
    ],
)
def test_invalid_arguments_are_rejected_before_anything_runs(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(FirstlightError, match=re.escape(said)):
        firstlight.run(**options, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_after_an_interruption_the_samples_so_far_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from firstlight.measure.runner import Runner

    take = Runner.take

    def interrupted(self: Runner, case: Any, kind: str, index: int, turn: Any = None) -> Any:
        if kind == "timed":
            raise KeyboardInterrupt
        return take(self, case, kind, index, turn)

    monkeypatch.setattr(Runner, "take", interrupted)
    (tmp_path / "bench_square.py").write_text(BENCH)
    with pytest.raises(KeyboardInterrupt):
        firstlight.run(
            tmp_path / "bench_square.py", processes=2, out=tmp_path / "out", progress=False
        )
    kept = firstlight.Run.load(tmp_path / "out")
    assert [s.kind for s in kept.samples] == ["check"] and kept[CASE].status == "incomplete"
