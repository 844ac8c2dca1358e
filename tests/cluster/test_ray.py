"""A real cluster of several nodes on this machine, also when one of them is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstlight.cluster.rehearsal import Nodes
from firstlight.snapshot.opening import RawRun
from firstlight.snapshot.order_and_clock import implausible

pytestmark = pytest.mark.slow


def run(*arguments: object, **options: Any) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "firstlight", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "firstlight", *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], seen: Any) -> None:
    """Wait for something that a running command does; it fails if the command ends before."""
    while not seen():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        assert seen(), process.communicate()[1]


@pytest.fixture(scope="module")
def many(workspace: Path) -> tuple[list[object], str]:
    """Enough toys for XLA, in several pieces, and what they are on this machine alone."""
    command: list[object] = ["hf", "toys", workspace, "-n", 2500, "--seed", 3, "--json"]
    return command, run(*command)


def test_toys_on_a_cluster_print_the_same_json(
    many: tuple[list[object], str], nodes: Nodes
) -> None:
    command, expected = many
    assert run(*command, "--on", nodes.address) == expected


@pytest.mark.parametrize(
    "command",
    [("scan", "--points", "5"), ("cls", "--mu", "0.5", "1"), ("toys", "-n", "30", "--cls", "1")],
    ids=lambda command: command[0],
)
def test_grids_on_a_cluster_print_the_same_json(
    command: tuple[str, ...], workspace: Path, nodes: Nodes
) -> None:
    what = ("hf", command[0], workspace, *command[1:], "--json")
    assert run(*what, "--on", nodes.address) == run(*what)


WORKER = """
import json, sys
import numpy as np
from firstlight import histfactory as hf
from firstlight.cluster.computing import computed
from firstlight.cluster.jobs import ToyJob
from firstlight.histfactory.toy_fits import plan_toys

class Watched(ToyJob):
    def compute(self, piece):
        import sys
        found = super().compute(piece)
        import jaxlib
        return {**found, "imported": np.array(["jax" in sys.modules, "jaxlib" in sys.modules])}

Watched.__module__ = "__main__"  # travels by value
job = Watched(plan_toys(hf.load(sys.argv[1]), 2500, 3))
with computed(job, on=sys.argv[2]) as finished:
    parts = [arrays["imported"].tolist() for _, arrays in finished.parts()]
print(json.dumps({"compiled": job.compiled, "imported": parts}))
"""


def test_a_worker_runs_frozen_executables_without_importing_jax(
    workspace: Path, nodes: Nodes, tmp_path: Path
) -> None:
    # What cannot be imported cannot trace, lower or compile either; and its cache is empty.
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(workspace), nodes.address],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["compiled"] and said["imported"]
    assert all(part == [False, True] for part in said["imported"])


def test_a_killed_node_loses_no_finished_piece_and_no_digit(
    many: tuple[list[object], str], nodes: Nodes, tmp_path: Path
) -> None:
    command, expected = many
    process = started(*command, "--on", nodes.address, "--checkpoint", "c", cwd=tmp_path)
    until(process, lambda: len(list(tmp_path.glob("c/piece-*"))) >= 2)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("c/piece-*")}
    nodes.kill(0)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out == expected
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items())


@pytest.fixture
def samples_of_two_nodes(nodes: Nodes, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """A run of a NumPy workload, one of whose nodes was killed in the middle."""
    process = started(
        *("run", "matmul", "-b", "small", "--backend", "numpy", "-p", 8, "--quick"),
        *("--out", "out", "--on", nodes.address),
        cwd=tmp_path,
    )
    lines = tmp_path / "out" / "samples.jsonl"
    until(process, lambda: lines.exists() and lines.read_text().count("\n") >= 3)
    kept = lines.read_text().splitlines()[:3]
    nodes.kill(1)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert lines.read_text().splitlines()[:3] == kept
    yield [json.loads(line) for line in lines.read_text().splitlines()]


def test_a_run_survives_a_killed_node_and_each_node_measures_one_at_a_time(
    samples_of_two_nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    samples = samples_of_two_nodes
    timed = sorted(s["index"] for s in samples if s["kind"] == "timed" and s["status"] == "ok")
    assert timed == list(range(8))
    assert [s["order"] for s in samples] == list(range(len(samples)))
    assert {s["cache"]["proven"] for s in samples if s["kind"] == "timed"} == {True}
    nodes_used = {s["facts"]["node"] for s in samples}
    assert len(nodes_used) >= 2
    names = ("plan.json", "samples.jsonl", "run.json")
    raw = RawRun.of("runs/001", {name: (tmp_path / "out" / name).read_bytes() for name in names})
    assert list(implausible(raw)) == []
    host = json.loads((tmp_path / "out" / "run.json").read_text())["host"]
    assert host["cpu"]["logical_cores"] == os.cpu_count()
    assert not any(name.startswith(("RAY_", "OMP_")) for name in host["environment"])
