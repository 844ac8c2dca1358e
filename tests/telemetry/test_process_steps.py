"""Calls of jitted functions: which are counted, and which are timed."""

from __future__ import annotations

import signal
import traceback
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scraping import Scrape, everything

from firstlight import telemetry
from firstlight.telemetry.watch.process import ProcessWatch


def test_calls_are_counted_by_function_and_the_first_is_cold(value: Scrape) -> None:
    @jax.jit
    def doubled(x: Any) -> Any:
        return x * 2

    x = np.ones(3, np.float32)
    for _ in range(7):
        float(doubled(x)[0])
    assert value("steps_total", function="doubled", result="ok") == 7
    assert value("steps_total", function="doubled", result="error") == 0
    assert value("step_duration_seconds_count", function="doubled", phase="cold") == 1
    assert value("step_duration_seconds_count", function="doubled", phase="warm") == 6
    # Another shape compiles again: that step is cold as well.
    doubled(np.ones(4, np.float32)).block_until_ready()
    assert value("step_duration_seconds_count", function="doubled", phase="cold") == 2
    assert value("first_result_seconds") > 0
    assert 0 < value("cold_start_share_ratio") < 1


class Result:
    """An array that becomes ready when the test says so."""

    nbytes = 4
    ready = False

    def is_ready(self) -> bool:
        return self.ready

    def is_deleted(self) -> bool:
        return False


def test_time_to_dispatch_is_not_reported_as_latency(watch: ProcessWatch, value: Scrape) -> None:
    steps, result = watch.steps, Result()
    function = steps.functions.of_steps("f")
    with telemetry.step("f"):
        steps.returned(steps.here(), function, result)  # immediately, while it is being computed
    steps.waited(steps.here(), object())
    assert value("steps_total", function="f", result="ok") == 1
    assert value("step_duration_seconds_count", function="f", phase="warm") == 0
    result.ready = True
    steps.waited(steps.here(), object())
    assert value("step_duration_seconds_count", function="f", phase="warm") == 1


def test_a_call_is_timed_until_its_result_is_ready(watch: ProcessWatch) -> None:
    @jax.jit
    def long(x: Any) -> Any:
        for _ in range(20):
            x = jnp.tanh(x @ x)
        return x

    x, other = jax.device_put(np.ones((500, 500), np.float32)), jax.device_put(np.float32(1))
    long(x).block_until_ready()
    timed = watch.steps.functions.of_steps("long").durations["warm"].counts
    y = long(x)
    float(other)
    watch.steps.count_ended()
    counted = sum(timed)
    assert counted == 0 or y.is_ready()
    y.block_until_ready()
    watch.steps.count_ended()
    assert sum(timed) == 1


def test_calls_between_two_reads_are_each_counted_with_the_mean(value: Scrape) -> None:
    @jax.jit
    def advance(x: Any) -> Any:
        return x + 1

    x = advance(np.float32(0))
    float(x)
    for _ in range(5):
        x = advance(x)
    assert value("step_duration_seconds_count", function="advance", phase="warm") == 0
    float(x)
    assert value("step_duration_seconds_count", function="advance", phase="warm") == 5


def test_large_results_are_not_kept_alive_and_then_not_timed(value: Scrape) -> None:
    @jax.jit
    def dropped(x: Any) -> Any:
        return jnp.zeros((1025, 256)) + x  # more than 1 MiB

    other = jax.device_put(np.float32(2))
    alive = len(jax.live_arrays())
    dropped(np.float32(0))
    assert len(jax.live_arrays()) == alive
    float(other)
    assert value("steps_total", function="dropped", result="ok") == 1
    for phase in ("cold", "warm"):
        assert value("step_duration_seconds_count", function="dropped", phase=phase) == 0


def test_errors_are_counted_and_their_traceback_is_the_programs(value: Scrape) -> None:
    @jax.jit
    def picky(x: Any) -> Any:
        raise KeyError("no such thing")

    with pytest.raises(KeyError) as caught:
        picky(np.ones(2))
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not any("telemetry/watch" in file for file in files)
    assert value("steps_total", function="picky", result="error") == 1
    assert value("steps_total", function="picky", result="ok") == 0


def test_calls_within_a_jitted_function_are_not_counted_separately(value: Scrape) -> None:
    @jax.jit
    def inner(x: Any) -> Any:
        return x + 1

    @jax.jit
    def outer(x: Any) -> Any:
        return inner(x) * 2

    assert float(outer(np.float32(1))) == 4
    assert value("steps_total", function="outer", result="ok") == 1
    assert value("steps_total", function="inner", result="ok") == 0


def test_a_step_is_what_the_program_says_it_is(value: Scrape) -> None:
    @jax.jit
    def part(x: Any) -> Any:
        return x + 1

    for _ in range(3):
        with telemetry.step("train"):
            x = part(part(np.float32(0)))
            x.block_until_ready()

    @telemetry.step("evaluate")
    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        fails()
    assert value("steps_total", function="train", result="ok") == 3
    assert value("step_duration_seconds_count", function="train", phase="cold") == 1
    assert value("step_duration_seconds_count", function="train", phase="warm") == 2
    assert value("steps_total", function="evaluate", result="error") == 1
    assert value("steps_total", function="part", result="ok") == 0


def test_a_step_without_a_watch_runs_its_block_and_returns_its_result() -> None:
    ran = []
    with telemetry.step("train"):
        ran.append("block")
    assert ran == ["block"]
    assert telemetry.step("train")(lambda x: x + 1)(1) == 2


def test_functions_beyond_the_limit_are_counted_together(watch: ProcessWatch) -> None:
    def make(n: int) -> Any:
        def function(x: Any) -> Any:
            return x + n

        function.__name__ = f"made_{n}"
        return jax.jit(function)

    for n in range(9):  # the limit is 6
        make(n)(np.float32(0)).block_until_ready()
    found = everything(watch)
    calls = {
        dict(labels)["function"]: count
        for (name, labels), count in found.items()
        if name == "firstlight_steps_total" and ("result", "ok") in labels
    }
    assert len(calls) == 7 and calls["other"] == 3 and sum(calls.values()) == 9


def test_a_watched_function_behaves_like_any_jitted_function(watch: ProcessWatch) -> None:
    class Model:
        @partial(jax.jit, static_argnums=0)
        def scaled(self, x: Any) -> Any:
            return x * 3

    @partial(jax.jit, static_argnames="power")
    def raised(x: Any, power: int = 2) -> Any:
        """To a power."""
        return x**power

    assert float(Model().scaled(np.float32(2))) == 6
    assert isinstance(raised, jax.stages.Wrapped)
    assert (raised.__name__, raised.__doc__) == ("raised", "To a power.")
    assert raised.__module__ == __name__
    assert float(raised.lower(np.float32(3), power=2).compile()(np.float32(3))) == 9
    assert float(jax.grad(raised)(3.0)) == 6
    assert jax.vmap(raised)(np.arange(3.0)).tolist() == [0, 1, 4]
    assert float(jax.jit(raised)(3.0)) == 9
    assert jax.eval_shape(raised, 1.0).shape == ()
    assert float(jax.jit(static_argnames="power")(raised.__wrapped__)(2.0, power=3)) == 8
    raised.clear_cache()
    assert raised._cache_size() == 0


def test_stopping_the_watch_restores_jax(watch: ProcessWatch) -> None:
    from jax._src import monitoring
    from jax._src.array import ArrayImpl

    ours = (jax.jit, ArrayImpl._value, ArrayImpl.block_until_ready)
    kept = jax.jit(lambda x: x + 1)
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL
    telemetry.stop()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    assert all(
        now is not before
        for now, before in zip(
            (jax.jit, ArrayImpl._value, ArrayImpl.block_until_ready), ours, strict=True
        )
    )
    assert not any("telemetry" in str(x) for x in monitoring.get_event_listeners())
    assert float(kept(np.float32(1))) == 2
    assert "_value" not in repr(jax.jit)
