"""A real cluster of several nodes on this machine: also interrupted, and when a node is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firstlight
from firstlight import cluster
from firstlight import histfactory as hf
from firstlight.cli import main
from firstlight.cluster.checkpoint import Checkpoint
from firstlight.cluster.computing import computed
from firstlight.cluster.jobs import ToyJob
from firstlight.cluster.rehearsal import Nodes
from firstlight.histfactory.toy_fits import plan_toys
from firstlight.records import Sample
from firstlight.records.run_directory import RunDirectory
from firstlight.snapshot.opening import RawRun
from firstlight.snapshot.order_and_clock import implausible

pytestmark = pytest.mark.slow

#: Enough toys for XLA, in several pieces.
TOYS = 1000
Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command prints; it must succeed."""

    def printed(*arguments: object) -> str:
        capsys.readouterr()
        code = main([*map(str, arguments)])
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return printed


@pytest.fixture(scope="module")
def model(workspace: Path) -> hf.Model:
    return hf.load(workspace)


@pytest.fixture(scope="module")
def expected(model: hf.Model) -> hf.Toys:
    """What the toys are on this machine alone."""
    return hf.toys(model, TOYS, 3)


def after(times: int, action: Callable[[], None], method: Any) -> Any:
    """A method that does something else too when it has returned so many times."""
    calls = []

    def watched(*arguments: Any) -> None:
        method(*arguments)
        calls.append(1)
        if len(calls) == times:
            action()

    return watched


def interrupt(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


def test_grids_and_limits_on_a_cluster_print_the_same_json(
    workspace: Path, mass_scan: tuple[Path, Path, Any], nodes: Nodes, run: Run
) -> None:
    background, patchset, _ = mass_scan
    for command in (
        ("scan", workspace, "--points", 5),
        ("cls", workspace, "--mu", 0.5, 1),
        ("toys", workspace, "-n", 10, "--cls", 1),
        ("limit", background, "--all-patches", patchset),
    ):
        what = ("hf", *command, "--json")
        assert run(*what, "--on", nodes.address) == run(*what), command[0]


class Watched(ToyJob):
    """Toys, and what the process that fitted them has imported and started."""

    def compute(self, piece: Any) -> Any:
        found = super().compute(piece)
        threads = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
        of_xla = sum("XLAEigen" in name for name in threads)
        own, node = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, os.getppid()))
        imported = ["jax" in sys.modules, "jaxlib" in sys.modules]
        return {**found, "seen": np.array([[*imported, of_xla, own - node]])}


def test_a_worker_runs_frozen_executables_in_one_thread_without_importing_jax(
    model: hf.Model, expected: hf.Toys, nodes: Nodes
) -> None:
    # What cannot be imported cannot trace, lower or compile either; and its cache is empty.
    from ray.cloudpickle import register_pickle_by_value

    register_pickle_by_value(sys.modules[__name__])  # which no worker can import
    job = Watched(plan_toys(model, TOYS, 3))
    with computed(job, on=nodes.address) as finished:
        seen, values = finished.column("seen"), finished.column("values")
    assert job.compiled and seen.tolist() == [[False, True, 1, 0]] * len(job.pieces())
    assert np.array_equal(values, expected.values)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_toys_are_finished_by_the_same_command_with_resume(
    number: int,
    workspace: Path,
    expected: hf.Toys,
    nodes: Nodes,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["hf", "toys", workspace, "-n", TOYS, "--seed", 3, "--json", "--on", nodes.address]
    command += ["--checkpoint", tmp_path / "c"]
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "keep", after(1, lambda: interrupt(number), Checkpoint.keep))
        assert main([*map(str, command)]) == 130
    assert "with --resume" in capsys.readouterr().err
    (piece,) = (tmp_path / "c").glob("piece-*")
    kept = piece.stat().st_mtime_ns
    found = json.loads(run(*command, "--resume"))
    assert found["poi_values"] == expected.values_of("mu").tolist()
    assert piece.stat().st_mtime_ns == kept


def test_a_killed_node_loses_no_finished_piece_and_no_digit(
    model: hf.Model, expected: hf.Toys, nodes: Nodes, tmp_path: Path
) -> None:
    before: dict[Path, int] = {}

    def kill(done: int, of: int) -> None:
        if not before:
            before.update({p: p.stat().st_mtime_ns for p in tmp_path.glob("c/piece-*")})
            nodes.kill(1)

    found = cluster.toys(model, TOYS, 3, on=nodes.address, checkpoint=tmp_path / "c", progress=kill)
    assert np.array_equal(found.values, expected.values)
    assert all(path.stat().st_mtime_ns == moment for path, moment in before.items())


def test_a_run_is_interrupted_resumed_and_survives_a_killed_node_that_measures_one_at_a_time(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, keep = tmp_path / "out" / "samples.jsonl", RunDirectory.keep
    command = ["run", "matmul", "-b", "small", "--backend", "numpy", "-p", "6", "--quick"]
    seen: set[str] = set()

    def interrupt_once_two_nodes_have_measured(directory: RunDirectory, sample: Sample) -> None:
        keep(directory, sample)
        before = len(seen)
        seen.add(sample.facts["node"])
        if before < 2 == len(seen):
            interrupt()

    monkeypatch.setattr(RunDirectory, "keep", interrupt_once_two_nodes_have_measured)
    assert main([*command, "--out", str(tmp_path / "out"), "--on", nodes.address]) == 130
    kept = lines.read_text()
    monkeypatch.setattr(RunDirectory, "keep", after(1, lambda: nodes.kill(2), keep))
    assert main(["run", "--resume", str(tmp_path / "out"), "--on", nodes.address]) == 0
    assert 2 <= kept.count("\n") < 7 and lines.read_text().startswith(kept)
    samples = [json.loads(line) for line in lines.read_text().splitlines()]
    timed = sorted(s["index"] for s in samples if s["kind"] == "timed" and s["status"] == "ok")
    assert timed == list(range(6))
    assert [s["order"] for s in samples] == list(range(len(samples)))
    assert {s["cache"]["proven"] for s in samples if s["kind"] == "timed"} == {True}
    assert {s["facts"]["node"] for s in samples} >= seen and len(seen) == 2
    names = ("plan.json", "samples.jsonl", "run.json")
    raw = RawRun.of("runs/001", {name: (tmp_path / "out" / name).read_bytes() for name in names})
    assert list(implausible(raw)) == []
    host = json.loads((tmp_path / "out" / "run.json").read_text())["host"]
    assert host["cpu"]["logical_cores"] == os.cpu_count()
    assert not any(name.startswith(("RAY_", "OMP_")) for name in host["environment"])


def test_python_measures_on_a_cluster_too(nodes: Nodes, tmp_path: Path) -> None:
    found = firstlight.run(
        "matmul",
        pattern="small",
        backends=["numpy"],
        processes=1,
        effort="quick",
        out=tmp_path / "out",
        progress=False,
        on=nodes.address,
    )
    assert found.ok and all(sample.facts["node"] for sample in found.samples)
