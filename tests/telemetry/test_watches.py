"""Leaks, drift, NaN and wrong gradients are found, without false alarms."""

from __future__ import annotations

import math
import random
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scraping import Scrape, everything

from firstlight import telemetry
from firstlight.telemetry import metrics
from firstlight.telemetry.differences import Verdict
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.functions import Functions
from firstlight.telemetry.watch.growth import GrowthWatch
from firstlight.telemetry.watch.process import ProcessWatch
from firstlight.telemetry.watch.resources import DCGM, Gpus, Memory

MIB = 2**20


def seen_at(sizes: Any, seconds: float = 10.0) -> list[bool]:
    """Whether growth is reported after each of these sizes."""
    watch = GrowthWatch()
    return [watch.add(n * seconds, size) is not None for n, size in enumerate(sizes)]


def test_a_leak_below_noise_and_a_sawtooth_is_detected_with_its_rate() -> None:
    draw = random.Random(1)
    watch = GrowthWatch()
    # 1 MiB per 10 s, below a sawtooth of 100 MiB every 40 s.
    sizes = [500 * MIB + n * MIB + (n % 4) * 25 * MIB + draw.random() * MIB for n in range(100)]
    found = [watch.add(10.0 * n, size) for n, size in enumerate(sizes)]
    assert found[-1] is not None
    assert found[-1].bytes_per_second == pytest.approx(MIB / 10, rel=0.1)


def test_a_slow_leak_is_detected_over_hours() -> None:
    draw = random.Random(2)
    # 10 MiB per hour: over ten minutes, less than the noise.
    sizes = [1000 * MIB + n * 10 * MIB / 360 + draw.random() * 4 * MIB for n in range(8 * 360)]
    found = seen_at(sizes)
    assert not any(found[:180]) and any(found)


@pytest.mark.parametrize(
    "size",
    [
        lambda n, r: 500 * MIB + r * 20 * MIB,  # noise
        lambda n, r: 500 * MIB + (n % 37) * 5 * MIB,  # a sawtooth
        lambda n, r: 900 * MIB * (1 - math.exp(-n / 8)) + r * MIB,  # a program that warms up
        lambda n, r: 500 * MIB + (300 * MIB if n > 200 else 0) + r * MIB,  # a second model
        lambda n, r: (900 - n / 10) * MIB,  # shrinking
    ],
)
def test_memory_that_does_not_grow_steadily_is_not_a_leak(size: Any) -> None:
    draw = random.Random(3)
    assert not any(seen_at([size(n, draw.random()) for n in range(1000)]))


def test_a_leak_names_the_function_whose_arrays_stay_alive(
    capfd: pytest.CaptureFixture[str],
) -> None:
    values = Values()
    functions = Functions(values, 10)
    memory = Memory(values, functions)
    leaking, tidy, state = map(functions.of_steps, ("leaking", "tidy", "state"))
    kept = []
    state.follow([jnp.zeros(100)], 0.0)
    for n in range(100):
        kept.append(jnp.zeros((16, 16)))
        leaking.follow([kept[-1]], 10.0 * n)
        tidy.follow([jnp.zeros(1000)], 10.0 * n)
        memory.note(10.0 * n, {"arrays": 100 * MIB + n * MIB, "host": 500 * MIB})
    suspected = [s for s in values if s.metric is metrics.LEAK_SUSPECTED]
    assert [s.labels for s in suspected] == [("arrays", "leaking")]
    said = capfd.readouterr().err
    assert "leaking" in said and "float32[16,16]" in said and said.count("\n") == 1
    assert len(leaking.followed) <= 33
    for n in range(100, 200):  # the leak ends
        memory.note(10.0 * n, {"arrays": 200 * MIB})
    assert not [s for s in values if s.metric is metrics.LEAK_SUSPECTED]


def test_a_leak_of_arrays_from_no_function_names_the_largest_kind_of_arrays(
    capfd: pytest.CaptureFixture[str],
) -> None:
    values = Values()
    memory = Memory(values, Functions(values, 10))
    kept = jax.device_put(np.zeros((3, 1024, 1024), np.float32))  # 12 MiB
    for n in range(100):
        memory.note(10.0 * n, {"arrays": 100 * MIB + n * MIB})
    (suspected,) = [s.labels for s in values if s.metric is metrics.LEAK_SUSPECTED]
    assert suspected == ("arrays", "")
    said = capfd.readouterr().err
    assert f"float32{list(kept.shape)}".replace(" ", "") in said and said.count("\n") == 1


def test_live_arrays_are_counted(watch: ProcessWatch) -> None:
    watch.look()
    before = everything(watch)
    kept = [jax.device_put(np.zeros(1000, np.float32)) for _ in range(5)]
    watch.look()
    now = everything(watch)
    key = ("firstlight_live_arrays", frozenset())
    assert now[key] - before[key] == len(kept)
    key = ("firstlight_live_array_bytes", frozenset())
    assert now[key] - before[key] == 5 * 4000


def test_nan_in_results_is_counted_by_function(watch: ProcessWatch, value: Scrape) -> None:
    @jax.jit
    def logarithm(x: Any) -> Any:
        return jnp.log(x), 1

    kept = [logarithm(np.float32(-1))]
    kept[-1][0].block_until_ready()
    watch.look()
    assert value("checked_results_total", function="logarithm", result="nan") == 1
    assert value("checked_results_total", function="logarithm", result="finite") == 0
    watch.steps.functions.of_steps("logarithm").follow_again = 0.0
    kept.append(logarithm(np.float32(1)))
    kept[-1][0].block_until_ready()
    watch.look()
    assert value("checked_results_total", function="logarithm", result="finite") == 1


def test_different_outputs_for_equal_inputs_are_counted_as_drift(
    value: Scrape, capfd: pytest.CaptureFixture[str]
) -> None:
    salt = iter([0.0, 0.0, 1e-7, 0.0])

    def canary(key: Any, x: Any) -> Any:
        return {"y": x + jax.random.normal(key), "z": next(salt)}

    watched = telemetry.watch_outputs(canary)
    key = jax.random.key(0)
    for x in (1.0, 1.0, 1.0, 2.0):
        watched(key, x)
    assert value("compared_outputs_total", function="canary", result="same") == 1
    assert value("compared_outputs_total", function="canary", result="different") == 1
    assert capfd.readouterr().err.count("canary gave different results") == 1


def quadratic(x: Any) -> Any:
    return jnp.sum(x["a"] ** 2) + 3 * jnp.sum(x["b"])


X = {"a": np.arange(5, dtype=np.float32), "b": np.ones(2, np.float32)}


def test_a_correct_gradient_passes_and_a_wrong_one_fails(value: Scrape) -> None:
    right = telemetry.check_gradient(quadratic, X, budget_seconds=60)
    assert right.verdict is Verdict.OK
    assert right.relative_error is not None and right.relative_error < 1e-2

    def wrong(x: Any) -> Any:
        return {"a": 2 * x["a"], "b": -3 * np.ones(2)}  # wrong sign

    found = telemetry.check_gradient(quadratic, X, gradient=wrong, budget_seconds=60)
    assert found.verdict is Verdict.WRONG
    # Along v, the wrong gradient is off by 6 Σ v_b, and v_b is ±1.
    assert found.relative_error is not None and found.relative_error > 0.1
    assert value("gradient_checks_total", result="ok") == 1
    assert value("gradient_checks_total", result="wrong") == 1
    assert value("gradient_max_relative_error_ratio") == found.relative_error


def test_a_nan_gradient_is_wrong(watch: ProcessWatch) -> None:
    found = telemetry.check_gradient(
        quadratic, X, gradient=lambda x: jax.tree.map(lambda a: a * np.nan, x), budget_seconds=60
    )
    assert found.verdict is Verdict.WRONG


def test_inconclusive_differences_are_uncertain(watch: ProcessWatch) -> None:
    draw = random.Random(5)
    found = telemetry.check_gradient(
        lambda x: draw.random(), np.ones(2, np.float32), gradient=lambda x: np.zeros(2)
    )
    assert found.verdict is Verdict.UNCERTAIN


def test_a_check_over_its_budget_is_given_up_with_one_warning(
    value: Scrape, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def slow(x: Any) -> Any:
        calls.append(x)
        return jnp.sum(x)

    for _ in range(2):
        found = telemetry.check_gradient(slow, np.ones(2, np.float32), budget_seconds=0.0)
        assert found.verdict is Verdict.OVER_BUDGET
    assert not calls
    assert value("gradient_checks_total", result="over_budget") == 2
    assert capfd.readouterr().err.count("was not checked") == 1


def test_an_error_of_the_function_stays_in_the_check(watch: ProcessWatch) -> None:
    def fails(x: Any) -> Any:
        raise ValueError("not defined here")

    assert telemetry.check_gradient(fails, np.ones(2)).verdict is Verdict.UNCERTAIN


def test_a_check_without_jax_is_uncertain_and_does_not_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    assert telemetry.check_gradient(quadratic, X).verdict is Verdict.UNCERTAIN


def test_a_watched_gradient_is_checked_at_intervals_and_returns_the_same(value: Scrape) -> None:
    gradient = jax.jit(jax.value_and_grad(quadratic), donate_argnums=0)
    watched = telemetry.watch_gradient(quadratic, gradient, budget_seconds=60)
    for _ in range(3):
        result, slope = watched({name: jax.device_put(a) for name, a in X.items()})
        assert float(result) == 36 and slope["b"].tolist() == [3, 3]
    assert value("gradient_checks_total", result="ok") == 1


def test_gpu_utilization_comes_from_nvidias_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda n: n,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=[30, 75][handle]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    values = Values()
    Gpus(values).sample()
    found = {sample.labels: sample.value for sample in values}
    assert found == {("gpu:0",): 0.3, ("gpu:1",): 0.75}


def test_without_nvidias_library_there_is_no_gpu_utilization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    values = Values()
    Gpus(values).sample()
    assert not list(values)


def test_names_of_dcgm_are_mapped_to_metrics_of_the_catalogue() -> None:
    assert set(DCGM) <= {metric.name for metric in metrics.CATALOGUE}
