"""Frozen functions: loaded and run without compiling, without JAX where it is not imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import LinearRegression
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from firstlight.telemetry.events import STAGES
from firstlight.warmstart import Example, freeze, load
from firstlight.warmstart.frozen import freezing, loading, places
from firstlight.warmstart.frozen.errors import (
    CannotFreezeError,
    DoesNotBelongError,
    UnknownCallError,
)
from firstlight.warmstart.frozen.loading import How

pytestmark = pytest.mark.slow

#: Earlier ones import JAX themselves when they place an array.
JAXLIB_RUNS_ALONE = jax.__version_info__ >= (0, 10)
without_jax = pytest.mark.skipif(not JAXLIB_RUNS_ALONE, reason="this jaxlib imports JAX itself")


def solve(system: dict[str, Any], ignored: Any = None, power: int = 1) -> LinearRegression:
    solution = jnp.linalg.solve(system["matrix"], system["right"]) ** power  # LAPACK on a CPU
    # A named tuple of a module that does not import JAX.
    return LinearRegression(solution, [jnp.sum(solution), None])


def example(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(rows)
    matrix = random.normal(size=(rows, rows)) + rows * np.eye(rows)
    return {"matrix": matrix, "right": random.normal(size=rows)}


@pytest.fixture(scope="module", autouse=True)
def in_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def solver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frozen in a program whose persistent cache has the same function: the hit is not frozen."""
    folder = tmp_path_factory.mktemp("frozen")
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (str(folder / "cache"), 0.0), strict=True):
        jax.config.update(name, value)
    try:
        for _ in range(2):  # stored, then loaded
            jax.clear_caches()
            jax.jit(solve)(example(3))
        return freeze(
            solve,
            (example(3),),
            Example(example(4), power=2),
            Example(example(3), np.zeros(7)),
            path=folder / "solve.frozen",
            static=("power",),
        )
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)


@pytest.fixture
def stages() -> Iterator[list[str]]:
    """What JAX says it traced, lowered or compiled."""
    heard: list[str] = []

    def listen(event: str, seconds: float, **about: object) -> None:
        if event in STAGES:
            heard.append(STAGES[event])

    monitoring.register_event_duration_secs_listener(listen)
    yield heard
    monitoring.unregister_event_duration_listener(listen)


FRESH = """
import json, sys
import numpy as np
from firstlight.warmstart import load
solve = load(sys.argv[1])
matrix, right = np.array([[2.0, 0, 0], [0, 4, 0], [0, 0, 8]]), np.ones(3)
found = solve({"matrix": matrix, "right": right})
loaded = [name for name in ("jax", "scipy") if name in sys.modules]
import scipy.linalg  # whole, after the stubs
import jax
again = solve({"matrix": matrix, "right": right}).slope
print(json.dumps({
    "loaded": loaded, "types": [type(found).__name__, type(found.slope).__name__],
    "solution": found.slope.tolist(), "again": again.tolist(),
    "scipy": scipy.linalg.solve(matrix, right).tolist(),
    "jax": jax.device_put(right).tolist(),
}))
"""


@without_jax
def test_a_fresh_process_runs_it_without_importing_jax_or_scipy(solver: Path) -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}\n{FRESH}"
    command = [sys.executable, "-c", code, str(solver)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "loaded": [],
        "types": ["LinearRegression", "ndarray"],
        "solution": [0.5, 0.25, 0.125],
        "again": [0.5, 0.25, 0.125],
        "scipy": [0.5, 0.25, 0.125],
        "jax": [1.0, 1.0, 1.0],
    }
    assert ended.stderr == ""


FORKED = """
import os, signal, sys
import numpy as np
from firstlight.forks import ForkError
from firstlight.warmstart import load
solve = load(sys.argv[1], with_jax=False)
system = {"matrix": np.eye(3), "right": np.ones(3)}
solve(system)
pid = os.fork()
if not pid:
    signal.alarm(20)  # ends a child that hangs
    try:
        solve(system)
    except ForkError:
        os._exit(7)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@without_jax
def test_a_forked_process_raises_rather_than_wait_for_the_threads_of_its_parent(
    solver: Path,
) -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}\n{FORKED}"
    command = [sys.executable, "-c", code, str(solver)]
    assert subprocess.run(command, timeout=120, check=False).returncode == 7


@pytest.mark.parametrize("with_jax", [True, pytest.param(False, marks=without_jax)])
def test_nothing_is_traced_lowered_or_compiled(
    solver: Path, stages: list[str], with_jax: bool
) -> None:
    frozen = load(solver, with_jax=with_jax)
    for rows, power in ((3, None), (4, 2)):
        system = example(rows)
        found = frozen(system, power=power) if power else frozen(system)
        expected = np.linalg.solve(system["matrix"], system["right"]) ** (power or 1)
        np.testing.assert_allclose(found.slope, expected, rtol=1e-12)
        np.testing.assert_allclose(found.intercept[0], expected.sum(), rtol=1e-12)
        assert isinstance(found.slope, jax.Array if with_jax else np.ndarray)
    assert stages == []


def test_a_call_that_was_not_frozen_names_those_that_were(solver: Path) -> None:
    with pytest.raises(UnknownCallError) as caught:
        load(solver)(example(5))
    text = str(caught.value)
    assert "solve was not frozen for ({'matrix': float64[5,5], 'right': float64[5]})" in text
    assert "({'matrix': float64[3,3], 'right': float64[3]}, float64[7])" in text
    assert "({'matrix': float64[4,4], 'right': float64[4]}, power=2)" in text
    assert load(solver, original=solve)(example(5)).slope.shape == (5,)


def test_a_transformation_names_what_to_freeze_or_uses_the_original(solver: Path) -> None:
    def total(function: Any) -> Any:
        return lambda right: function({"matrix": example(3)["matrix"], "right": right}).intercept[0]

    with pytest.raises(UnknownCallError, match=r"Freeze what you need, for example jax\.grad"):
        jax.grad(total(load(solver)))(np.ones(3))
    slope = jax.grad(total(load(solver, original=solve)))(np.ones(3))
    np.testing.assert_allclose(slope, np.linalg.inv(example(3)["matrix"]).sum(0), rtol=1e-10)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"jaxlib": "0.0.1"}, "jaxlib is 0.0.1 here"),
        ({"system": "linux-sparc"}, "system is linux-sparc here"),
        ({"instructions": ()}, "this processor lacks"),
        ({"python": "2.7"}, "Python is 2.7 here"),
    ],
)
def test_elsewhere_it_refuses_with_the_reason_or_calls_the_original(
    solver: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    elsewhere = replace(places.this_place(), **change)
    monkeypatch.setattr(loading, "this_place", lambda: elsewhere)
    with pytest.raises(DoesNotBelongError, match=reason):
        load(solver)
    instead = load(solver, original=lambda system: "the original")
    assert instead.how is How.ORIGINAL
    assert instead(example(3)) == "the original"


def test_another_precision_is_refused_when_run_with_jax(solver: Path) -> None:
    with jax.enable_x64(False), pytest.raises(DoesNotBelongError, match="jax_enable_x64 is False"):
        load(solver)


def scores(weights: Any, rows: Any, shift: Any) -> dict[str, Any]:
    return {"scores": jnp.tanh(rows["x"] @ weights) + shift, "largest weight": weights.max()}


def test_buckets_answer_any_number_of_rows_up_to_the_largest(tmp_path: Path) -> None:
    weights = np.arange(3.0)
    shapes = jax.ShapeDtypeStruct((1, 3), np.float64)
    path = freeze(
        scores, (weights, {"x": shapes}, 1.0), path=tmp_path / "s", buckets=(2, 8), batched=(1,)
    )
    for with_jax in (True, False) if JAXLIB_RUNS_ALONE else (True,):
        frozen = load(path, with_jax=with_jax)
        for rows in (1, 2, 5, 8):
            x = np.random.default_rng(rows).normal(size=(rows, 3))
            found = frozen(weights, {"x": x}, 0.5)
            np.testing.assert_allclose(found["scores"], np.tanh(x @ weights) + 0.5, rtol=1e-12)
            assert found["largest weight"] == 2.0
        with pytest.raises(UnknownCallError, match="at most 8 rows"):
            frozen(weights, {"x": np.zeros((9, 3))}, 0.5)


def test_examples_are_the_arguments_of_one_call_or_several_calls() -> None:
    x, w = np.zeros(2), np.zeros(3)
    line = LinearRegression(1.0, 2.0)  # a named tuple is an argument

    def calls(*examples: Any) -> list[tuple[Any, ...]]:
        return [call.args for call in freezing._calls(examples)]

    assert calls(x, w) == [(x, w)]
    assert calls(line) == [(line,)]
    assert calls((x, w), Example(w)) == [(x, w), (w,)]
    assert calls((x,), w) == [((x,), w)]
    for examples in ((), (x, Example(w))):
        with pytest.raises(CannotFreezeError):
            calls(*examples)


def test_a_function_that_mixes_rows_gets_no_buckets(tmp_path: Path) -> None:
    with pytest.raises(CannotFreezeError, match="treat every row on its own"):
        freeze(lambda x: x - x.mean(), (np.arange(4.0),), path=tmp_path / "m", buckets=(4,))
    with pytest.raises(CannotFreezeError, match="not in its first axis alone"):
        freeze(lambda x: x.T, (np.ones((4, 2)),), path=tmp_path / "t", buckets=(4,))
    assert list(tmp_path.iterdir()) == []


def test_trees_that_only_jax_knows_need_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "prove", lambda frozen, calls: frozen)  # shown by the others
    given = OrderedDict(z=np.ones(2), a=np.zeros(2))
    path = freeze(lambda d: d, (given,), path=tmp_path / "o")
    frozen = load(path)
    assert frozen.how is How.WITH_JAX
    assert list(frozen(given)) == ["z", "a"]


def printing(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


@pytest.mark.parametrize(
    ("function", "call", "reason"),
    [
        (printing, (1.0,), "calls back into Python"),
        (jax.random.normal, (jax.random.key(0),), r"jax\.random\.key_data"),
        (lambda x: x, (), "missing 1 required positional argument"),
    ],
)
def test_what_cannot_be_frozen_is_refused_with_the_reason(
    tmp_path: Path, function: Any, call: Any, reason: str
) -> None:
    with pytest.raises((CannotFreezeError, TypeError), match=reason):
        freeze(function, call, path=tmp_path / "no")
    with pytest.raises(CannotFreezeError, match="the static argument mode is a object"):
        freeze(solve, Example(example(3), mode=object()), path=tmp_path / "no", static=("mode",))
    assert list(tmp_path.iterdir()) == []
