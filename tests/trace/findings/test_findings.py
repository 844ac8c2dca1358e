"""Every remedy: a program with the disease, the same one cured, and clean programs."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from firstlight.cli import main
from firstlight.trace.findings import load, thresholds
from firstlight.trace.read.assembly import read_folder
from firstlight.trace.read.model import Finding, Trace

pytestmark = pytest.mark.slow

SINCE_0_11 = tuple(map(int, version("jax").split(".")[:2])) >= (0, 11)
PROGRAMS = Path(__file__).parents[1] / "programs"
#: Runs programs one after the other in one traced process, each as if it were the main one.
DRIVER = """
import firstlight.trace.startup, runpy, sys
paths, arguments = sys.argv[1].split(","), sys.argv[2:]
for path in paths:
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")
"""


class Pair(NamedTuple):
    name: str
    kind: str
    function: str


#: Findings are by function and line, so these can share a process.
TOGETHER = (
    Pair("unused_import", "expensive-import", "plotting"),  # the first: before any result
    Pair("ragged_batch", "shape-recompiles", "train_step"),
    Pair("growing_sequence", "shape-recompiles", "next_token"),
    Pair("static_rate", "static-recompiles", "step"),
    Pair("static_config", "static-recompiles", "score"),
    Pair("lambda_in_loop", "new-function-recompiles", "<lambda>"),
    Pair("partial_in_loop", "new-function-recompiles", "accuracy"),
    Pair("jit_inside", "new-function-recompiles", "fit.<locals>.step"),
    Pair("weak_scalar", "weak-type-recompiles", "update"),
    Pair("int_or_float", "dtype-recompiles", "likelihood"),
    Pair("dict_or_ordered", "tree-recompiles", "predict"),
    Pair("optional_mask", "tree-recompiles", "attention"),
    Pair("committed_state", "sharding-recompiles", "decay"),
    Pair("initial_weights", "one-op-compiles", "initialise"),
    Pair("preprocessing", "one-op-compiles", "prepare"),
    Pair("update_by_hand", "one-op-compiles", "adam"),
    Pair("big_table", "large-constants", "efficiency"),
    Pair("nested_table", "large-constants", "corrected"),
    Pair("trajectory", "unrolled-loop", "trajectory"),
    Pair("short_loop", "unrolled-loop", "root"),
    Pair("recurrent", "unrolled-loop", "gradient"),
    Pair("recursion", "unrolled-loop", "series"),
    Pair("late_evaluation", "late-stall", "predict"),
)
#: The first two in a short process, since waits are compared with the whole run. The others change
#: settings of JAX, or its caches, for all later programs.
APART = (
    Pair("loss_each_step", "synchronisation", "<module>"),
    Pair("print_each_step", "synchronisation", "run"),
    Pair("precision_toggled", "context-recompiles", "gram"),
    Pair("wide_toggled", "context-recompiles", "log_sum"),
    Pair("double_or_single", "dtype-recompiles", "spectrum"),
    Pair("caches_cleared", "unexplained-recompiles", "calibrate"),
)


def run(folder: Path, *programs: str, arguments: Sequence[object] = (), **environment: str) -> None:
    """Trace programs in one process, into a folder."""
    paths = ",".join(str(PROGRAMS / f"{name}.py") for name in programs)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, paths, *map(str, arguments)],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("JAX_")},
            "FIRSTLIGHT_TRACE": str(folder),
            "PYTHONPATH": str(PROGRAMS),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def traced(*programs: str, arguments: Sequence[object] = (), **environment: str) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), *programs, arguments=arguments, **environment)
        return read_folder(Path(folder))


def findings(trace: Trace) -> tuple[Finding, ...]:
    from firstlight.trace.findings import find

    return find(trace)


@functools.cache
def traces_of(pairs: tuple[Pair, ...]) -> tuple[Trace, Trace]:
    """All diseases in one process, all cures in another."""
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(
            lambda state: traced(*(f"{p.name}_{state}" for p in pairs)), ("disease", "cure")
        )
        disease, cure = both
    return disease, cure


def line_of(program: str) -> str:
    """Where the disease is: the marked line."""
    path = PROGRAMS / f"{program}.py"
    lines = path.read_text().splitlines()
    number = next((n for n, text in enumerate(lines, 1) if text.endswith("# here")), None)
    return f"{path}:{number}" if number else str(path)


def assert_found(trace: Trace, kind: str, function: str, program: str) -> Finding:
    every = [(f.kind, f.function, f.location) for f in findings(trace)]
    where = line_of(program)
    here = [
        f
        for f in findings(trace)
        if (f.kind, f.function) == (kind, function) and (f.location or "").startswith(where)
    ]
    assert here, f"no {kind} of {function} at {where}, only {every}"
    assert here[0].seconds > 0
    assert here[0].remedy
    return here[0]


def assert_not_found(trace: Trace, kind: str, program: str | None = None) -> None:
    path = str(PROGRAMS / f"{program}.py") if program else ""
    found = [f for f in findings(trace) if f.kind == kind and path in (f.location or "")]
    assert found == []


@pytest.fixture
def any_import_is_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long JAX's own import takes depends on the machine: here a hundredth is expensive."""
    monkeypatch.setattr(thresholds, "IMPORT_SHARE_OF_JAX", 0.01)


@pytest.mark.usefixtures("any_import_is_expensive")
@pytest.mark.parametrize("pair", TOGETHER, ids=lambda pair: pair.name)
def test_a_disease_is_found_with_its_line_and_gone_once_cured(pair: Pair) -> None:
    disease, cure = traces_of(TOGETHER)
    assert_found(disease, pair.kind, pair.function, f"{pair.name}_disease")
    assert_not_found(cure, pair.kind, f"{pair.name}_cure")


@pytest.mark.parametrize("pair", APART, ids=lambda pair: pair.name)
def test_a_disease_of_waits_or_settings_is_found_and_gone_once_cured(pair: Pair) -> None:
    disease, cure = traces_of(APART)
    assert_found(disease, pair.kind, pair.function, f"{pair.name}_disease")
    assert_not_found(cure, pair.kind, f"{pair.name}_cure")


# --- the persistent cache -------------------------------------------------------------------------


@pytest.fixture
def a_moment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a compile takes depends on the machine: here any is reported."""
    for name in (
        "CACHE_OFF_SHARE",
        "CACHE_USELESS_SHARE",
        "CACHE_COLD_SHARE",
        "SAME_PROGRAM_SHARE",
    ):
        monkeypatch.setattr(thresholds, name, 0.001)
    monkeypatch.setattr(thresholds, "DOMINATING_SHARE_OF_START", 0.01)


MOVED = ("cache_moved_disease", "cache_moved_cure")


class Kept(NamedTuple):
    """What programs left in a cache, and their trace."""

    trace: Trace
    cache: Path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kept]:
    """By state: one process per state; the cured one also fills the cache that will be moved."""
    found = {}
    for state in ("disease", "cure"):
        cache = tmp_path_factory.mktemp(state)
        programs = (f"cache_threshold_{state}", f"cache_callback_{state}")
        also = MOVED if state == "cure" else ()
        found[state] = Kept(traced(*programs, *also, arguments=[cache]), cache)
    return found


@pytest.mark.usefixtures("a_moment_is_enough")
def test_a_cache_that_keeps_nothing_below_its_threshold_is_reported(kept: dict[str, Kept]) -> None:
    disease, cure = kept["disease"], kept["cure"]
    found = [f for f in findings(disease.trace) if f.kind == "cache-below-threshold"]
    assert [f.evidence["programs"] for f in found] == [5]
    assert "jax_persistent_cache_min_compile_time_secs" in found[0].remedy
    assert_not_found(cure.trace, "cache-below-threshold")
    # The oracle: the files on disk.
    assert not list(disease.cache.glob("jit__lambda*-cache"))
    assert len(list(cure.cache.glob("jit__lambda*-cache"))) == 5


@pytest.mark.usefixtures("a_moment_is_enough")
def test_a_program_with_callbacks_is_reported_as_kept_out_of_the_cache(
    kept: dict[str, Kept],
) -> None:
    disease, cure = kept["disease"], kept["cure"]
    assert_not_found(cure.trace, "cache-callbacks")
    assert list(cure.cache.glob("jit_step-*-cache"))
    # The oracle: JAX keeps such programs from 0.11 on.
    assert bool(list(disease.cache.glob("jit_step-*-cache"))) is SINCE_0_11
    if SINCE_0_11:
        assert_not_found(disease.trace, "cache-callbacks")
        again = traced("cache_callback_disease", arguments=[disease.cache])
        (step,) = [f for f in again.functions if f.name == "step"]
        assert [c.cache.status for c in step.compiles if c.cache] == ["hit"]
    else:
        assert_found(disease.trace, "cache-callbacks", "step", "cache_callback_disease")


@pytest.mark.usefixtures("a_moment_is_enough")
def test_a_cache_that_was_moved_fits_only_without_paths_in_its_keys(
    tmp_path: Path, kept: dict[str, Kept]
) -> None:
    moved = shutil.copytree(kept["cure"].cache, tmp_path / "moved")
    trace = traced(*MOVED, arguments=[moved])
    with_hits: tuple[str, ...] = MOVED
    if not SINCE_0_11:  # 0.11 has no path in its keys
        found = assert_found(trace, "cache-key-changed", "draw", "cache_moved_disease")
        assert "jax_persistent_cache_enable_xla_caches" in found.remedy
        assert found.evidence["programs"] == 1
        with_hits = ("cache_moved_cure",)
    for name in with_hits:
        own = [f for f in trace.functions if f.place and f.place.file.endswith(f"{name}.py")]
        assert {c.cache.status for f in own for c in f.compiles if c.cache} == {"hit"}


@pytest.mark.usefixtures("a_moment_is_enough")
def test_no_cache_then_a_cold_one_then_a_warm_one(tmp_path: Path) -> None:
    off = traced("slow_compile")
    cold = traced("slow_compile", arguments=[tmp_path])
    warm = traced("slow_compile", arguments=[tmp_path])
    for trace, kinds in (
        (off, {"cache-off", "one-function-dominates"}),
        (cold, {"cache-cold", "one-function-dominates"}),
        (warm, set()),
    ):
        found = {f.kind: f for f in findings(trace)}
        assert set(found) == kinds
        for kind in kinds - {"cache-off"}:  # it names no line
            assert_found(trace, kind, "draws", "slow_compile")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two ranks without a cache: the same program, then one that differs by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    programs = ("same_on_every_rank", "uneven_ranks")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: run(folder, *programs, RANK=str(rank)), range(2)))
    return read_folder(folder)


@pytest.mark.usefixtures("a_moment_is_enough")
def test_ranks_that_compile_the_same_are_found_and_those_that_share_are_not(
    tmp_path: Path, ranks: Trace
) -> None:
    for rank in range(2):  # one after the other, with one cache
        folder = tmp_path / "shared"
        run(folder, "same_on_every_rank", arguments=[tmp_path / "cache"], RANK=str(rank))
    shared = read_folder(tmp_path / "shared")
    assert [p.rank for p in shared.processes] == ["0", "1"]
    found = assert_found(ranks, "ranks-compile-the-same", "loss", "same_on_every_rank")
    assert found.evidence["processes"] == [0, 1]
    assert found.evidence["programs"] == 1  # not those of uneven_ranks
    assert_not_found(shared, "ranks-compile-the-same")
    assert_not_found(ranks, "ranks-compile-apart", "same_on_every_rank")


@pytest.mark.usefixtures("a_moment_is_enough")
def test_a_finding_says_why_the_programs_of_ranks_differ(ranks: Trace) -> None:
    """No cache can help: each rank compiles a program that no other has."""
    found = assert_found(ranks, "ranks-compile-apart", "loss", "uneven_ranks")
    assert found.evidence["ranks"] == ["0", "1"]
    assert "x: f32[3,3] → f32[4,3]" in found.title
    assert "pad the shorter shards" in found.remedy
    assert_not_found(ranks, "ranks-compile-the-same", "uneven_ranks")


def test_arguments_that_are_moved_in_every_call_are_found_on_eight_devices() -> None:
    """Small arguments, and those that are gathered on purpose, are not."""
    with ThreadPoolExecutor(2) as pool:
        names = ("resharded_disease", "resharded_cure")
        disease, cure = pool.map(traced, names)
    found = assert_found(disease, "resharded-arguments", "step", "resharded_disease")
    assert found.evidence["bytes"] == 1024 * 512 * 4  # all of the batch, none of the weights
    (move,) = found.evidence["arguments"]
    assert move.startswith("batch f32[1024,512] is given as ")
    wanted = (PROGRAMS / "resharded_disease.py").read_text().splitlines()
    number = next(n for n, line in enumerate(wanted, 1) if line.endswith("# wanted"))
    assert move.endswith(f"at resharded_disease.py:{number}")
    assert "jax.device_put" in found.remedy
    kinds = [(f.kind, f.function) for f in findings(disease) if f.kind == "resharded-arguments"]
    assert sorted(kinds) == [("resharded-arguments", "step"), ("resharded-arguments", "total")]
    assert [f for f in findings(cure) if not f.apart] == []


@pytest.mark.usefixtures("a_moment_is_enough")
def test_programs_that_only_process_0_may_cache_are_reported_for_others(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(
            lambda rank: run(
                tmp_path / "logs", "distributed_rank", arguments=[tmp_path / "a", rank, address]
            ),
            range(2),
        )
        list(both)
    disease = load(tmp_path / "logs")
    cure = traced("distributed_rank", arguments=[tmp_path / "b", 1])
    assert_found(disease, "cache-not-written-by-rank", "summary", "distributed_rank")
    assert_not_found(cure, "cache-not-written-by-rank")
    assert not list(tmp_path.glob("a/*-cache"))
    assert len(list(tmp_path.glob("b/*-cache"))) == 1


# --- clean programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("clean_*.py")))
def test_a_clean_program_has_no_findings(name: str) -> None:
    trace = traced(name)
    # A missing persistent cache may be reported for any program, apart: it is not its disease.
    assert [f for f in findings(trace) if not f.apart] == []
    assert [p.problems for p in trace.processes] == [()]


@pytest.mark.usefixtures("any_import_is_expensive")
def test_findings_are_sorted_worst_first() -> None:
    disease, _ = traces_of(TOGETHER)
    seconds = [f.seconds for f in findings(disease) if not f.apart]
    assert len(seconds) >= len(TOGETHER)
    assert seconds == sorted(seconds, reverse=True)


def test_sizes_to_pad_to_are_the_next_powers_of_two() -> None:
    disease, _ = traces_of(TOGETHER)
    found = assert_found(disease, "shape-recompiles", "next_token", "growing_sequence_disease")
    assert found.evidence["varying"] == [
        {"arguments": ("tokens",), "dimension": 0, "sizes": (3, 4, 5, 6, 7), "buckets": (4, 8)}
    ]
    assert "dimension 0 of tokens" in found.remedy
    assert "4, 8" in found.remedy


def test_a_remedy_names_the_argument_and_a_type_for_it() -> None:
    disease, _ = traces_of(TOGETHER)
    dtype = assert_found(disease, "dtype-recompiles", "likelihood", "int_or_float_disease")
    weak = assert_found(disease, "weak-type-recompiles", "update", "weak_scalar_disease")
    assert "strength" in dtype.remedy
    assert "np.float32" in dtype.remedy
    assert "velocity" in weak.remedy


@pytest.mark.usefixtures("a_moment_is_enough")
def test_firstlight_exec_cures_what_is_wrong_with_the_cache_as_the_findings_say(
    tmp_path: Path, ranks: Trace
) -> None:
    """No cache, one below its threshold, one that was moved, a callback that was removed."""
    sick = ("same_on_every_rank", "cache_threshold_disease", "cache_moved_disease")
    without = [f for f in findings(ranks) if f.kind == "cache-off"]
    assert "Start the program with `firstlight exec`" in without[0].remedy
    assert "firstlight.warmstart.freeze" in without[0].remedy
    with_callback, without_callback = "cache_callback_disease", "cache_callback_cure"
    made, moved = tmp_path / "made", tmp_path / "moved"
    exec_sets = {"FIRSTLIGHT_WARMSTART": "1", "FIRSTLIGHT_CACHE_DIR": str(tmp_path / "own")}
    # Programs are kept in the folder that the program names; then the folder moves.
    first = traced(*sick, with_callback, without_callback, arguments=[made], **exec_sets)
    if SINCE_0_11:  # JAX keeps it
        assert_not_found(first, "cache-callbacks")
    else:
        found = assert_found(first, "cache-callbacks", "step", with_callback)
        assert commands_in(found.remedy) == {"`firstlight exec`"}
    shutil.copytree(made, moved)
    cured = traced(*sick, without_callback, arguments=[moved], **exec_sets)
    for kind in ("off", "below-threshold", "key-changed", "cold", "callbacks"):
        assert_not_found(cured, f"cache-{kind}")
    assert_all_hits(cured)


@pytest.mark.usefixtures("a_moment_is_enough")
def test_a_cold_cache_is_warm_after_the_manifest_was_recorded_and_built_as_its_finding_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, manifest = PROGRAMS / "same_on_every_rank.py", str(tmp_path / "it.warm")
    recorded, image = str(tmp_path / "of the developer"), str(tmp_path / "of the image")
    with monkeypatch.context() as watched:
        watched.setenv("FIRSTLIGHT_TRACE", str(tmp_path / "logs"))
        record = ["warm", "record", "--out", manifest, "--cache", recorded]
        assert main([*record, str(program)]) == 0
    (cold,) = [f for f in findings(load(tmp_path / "logs")) if f.kind == "cache-cold"]
    assert {"`firstlight warm record`", "`firstlight warm build`"} <= commands_in(cold.remedy)
    assert main(["warm", "build", manifest, "--cache", image, "--jobs", "1"]) == 0
    exec_sets = {"FIRSTLIGHT_WARMSTART": "1", "FIRSTLIGHT_CACHE_DIR": image}
    cured = traced("same_on_every_rank", **exec_sets)
    assert_not_found(cured, "cache-cold")
    assert_all_hits(cured)


def commands_in(remedy: str) -> set[str]:
    return set(re.findall(r"`firstlight [a-z ]+`", remedy))


def assert_all_hits(trace: Trace) -> None:
    compiles = [c for f in trace.functions for c in f.compiles if c.compiled]
    assert {c.cache.status for c in compiles if c.cache} == {"hit"}


@pytest.mark.usefixtures("a_moment_is_enough")
def test_ranks_that_start_together_under_firstlight_exec_compile_once(tmp_path: Path) -> None:
    exec_sets = {"FIRSTLIGHT_WARMSTART": "1", "FIRSTLIGHT_CACHE_DIR": str(tmp_path / "cache")}
    with ThreadPoolExecutor(2) as pool:
        ranks = pool.map(
            lambda rank: run(tmp_path / "logs", "same_on_every_rank", RANK=str(rank), **exec_sets),
            range(2),
        )
        list(ranks)
    trace = load(tmp_path / "logs")
    assert len(trace.processes) == 2
    assert_not_found(trace, "ranks-compile-the-same")


@pytest.mark.usefixtures("a_moment_is_enough")
def test_a_frozen_function_leaves_nothing_to_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freezing also removes tracing and lowering, which a cache leaves."""
    from firstlight.warmstart.frozen import freezing

    monkeypatch.setattr(freezing, "prove", lambda frozen, calls: frozen)  # the trace proves it

    def loss(x: Any) -> Any:
        return jnp.sum(jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(3)))

    x = np.ones((3, 3), np.float32)
    path = freezing.freeze(loss, (x,), path=tmp_path / "loss.frozen")
    program = PROGRAMS / "frozen_loss.py"
    trace = traced(program.stem, arguments=[path])
    assert trace.functions == ()
    assert findings(trace) == ()
