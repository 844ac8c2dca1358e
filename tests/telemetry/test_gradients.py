"""Gradients of an unchanged program are checked, without any other effect on it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import api
from scraping import Checks, Scrape, everything

from firstlight import telemetry
from firstlight.telemetry.watch import gradient_checks
from firstlight.telemetry.watch.gradients import Gradients
from firstlight.telemetry.watch.process import ProcessWatch

X = np.linspace(0.5, 2.0, 6, dtype=np.float32)


def energy(x: Any) -> Any:
    return jnp.sum(x**3)


@jax.custom_vjp
def halved(x: Any) -> Any:
    return jnp.sum(x**2)


halved.defvjp(lambda x: (halved(x), x), lambda x, g: (g * x,))  # wrong: the factor 2 is missing


@pytest.mark.parametrize("is_jitted", [True, False])
def test_a_correct_gradient_passes_and_the_program_gets_its_results(
    is_jitted: bool, checks: Checks
) -> None:
    gradient, both = jax.grad(energy), jax.value_and_grad(energy)
    if is_jitted:
        gradient, both = jax.jit(gradient), jax.jit(both)
    for _ in range(3):
        np.testing.assert_allclose(gradient(X), 3 * X**2, rtol=1e-5)
        value, slope = both(X)
        np.testing.assert_allclose(value, np.sum(X**3), rtol=1e-5)
        np.testing.assert_allclose(slope, 3 * X**2, rtol=1e-5)
    assert set(checks()) == {"ok"} and checks()["ok"] >= 2


@pytest.mark.parametrize("is_jitted", [True, False])
def test_a_wrong_rule_is_found_in_an_unchanged_program(
    is_jitted: bool, checks: Checks, capfd: pytest.CaptureFixture[str]
) -> None:
    gradient = jax.value_and_grad(halved)
    if is_jitted:
        gradient = jax.jit(gradient)
    for _ in range(2):
        np.testing.assert_allclose(gradient(X)[1], X)
    # Each check uses two directions, and one wrong check is not enough.
    assert checks() == {"uncertain": 1, "wrong": 1}
    assert capfd.readouterr().err.count("the gradient of halved disagrees") == 1


def test_a_gradient_taken_again_at_every_step_keeps_its_checks(checks: Checks) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(x**2)

    for _ in range(3):
        jax.grad(loss)(X)
    (found,) = vars(loss)["_firstlight_gradients"].values()
    assert checks() == {"ok": 3} and found._turn == 3  # with another direction each time


def test_compiles_of_a_check_are_not_counted(
    value: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def once_compiled(x: Any) -> Any:
        return jnp.sum(jnp.cos(x))

    gradient = jax.jit(jax.grad(once_compiled))
    gradient(X).block_until_ready()
    stages = ("trace", "lower", "compile")
    before = [value("compile_duration_seconds_count", stage=stage) for stage in stages]
    monkeypatch.setattr(gradient_checks, "_MAX_SHARE", 1e12)
    monkeypatch.setattr(gradient._checks, "next_check", 0)
    monkeypatch.setattr(gradient._of, "follow_again", 0.0)  # as if a second had passed
    for _ in range(3):
        gradient(X).block_until_ready()
    assert value("gradient_checks_total", result="ok") == 1
    assert [value("compile_duration_seconds_count", stage=stage) for stage in stages] == before
    assert value("recompiles_total", function="once_compiled") == 0
    assert value("steps_total", function="once_compiled", result="ok") == 4


def test_gradients_with_auxiliary_results_several_variables_and_other_arguments_are_checked(
    checks: Checks,
) -> None:
    def loss(weights: Any, bias: Any, batch: Any, kind: str, *, scale: float) -> Any:
        assert kind == "mean"
        error = jnp.mean((batch["x"] @ weights["w"] + bias) ** 2) * scale
        return error, {"error": error, "kind": 1}

    batch = {"x": np.ones((4, 3), np.float32)}
    weights = {"w": np.arange(3, dtype=np.float32), "steps": np.int32(3)}
    for make in (jax.grad, jax.value_and_grad):
        gradient = make(loss, (0, 1), has_aux=True)
        with pytest.raises(TypeError, match="grad requires"):  # JAX's own error, for an integer
            gradient(weights, 0.5, batch, "mean", scale=2.0)
        gradient({"w": weights["w"]}, 0.5, batch, "mean", scale=2.0)
    jitted = jax.jit(jax.grad(loss, has_aux=True), static_argnums=3)
    jitted({"w": weights["w"]}, 0.5, batch, "mean", scale=2.0)
    assert checks() == {"ok": 3}


def test_gradients_that_cannot_or_must_not_be_checked_are_counted(
    checks: Checks, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[float] = []

    def asks(x: Any) -> Any:
        def answer(y: Any) -> Any:
            asked.append(float(y))
            return np.float32(2)

        return jax.pure_callback(answer, jax.ShapeDtypeStruct((), np.float32), 1.0) * jnp.sum(x)

    for _ in range(2):
        jax.jit(jax.grad(asks))(X).block_until_ready()
    assert asked == [1.0, 1.0]  # by the program only
    jax.vmap(jax.grad(jnp.sin))(X)
    jax.grad(jnp.sin, holomorphic=True)(1j)
    assert checks() == {"effects": 2}
    assert jax.grad(jax.grad(jnp.sin))(0.5) == pytest.approx(-np.sin(0.5))
    assert checks() == {"effects": 2, "ok": 1}  # the outer gradient is checked like any other
    assert capfd.readouterr().err == ""


def test_a_check_over_its_budget_stops_with_one_warning_and_evaluates_nothing(
    every_call: None, capfd: pytest.CaptureFixture[str]
) -> None:
    watch = telemetry.start(gradient_seconds=1e-9, interval_seconds=3600)
    evaluated: list[int] = []

    def slow(x: Any) -> Any:
        evaluated.append(1)
        return jnp.sum(x**2)

    gradient = jax.jit(jax.grad(slow))
    for _ in range(3):
        gradient(X)
    over = ("firstlight_gradient_checks_total", frozenset({("result", "over_budget")}))
    found = everything(watch)[over]
    telemetry.stop()
    assert found == 1 and len(evaluated) == 1  # traced by the program only
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and "the gradient of slow was not checked" in said[0]


def test_a_check_waits_until_it_costs_at_most_a_hundredth_of_the_time(
    watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([100.0, 150.0, 199.0])
    monkeypatch.setattr(gradient_checks, "monotonic", lambda: next(clock))
    checks = Gradients(watch.steps, watch.note_gradient, 5.0).checks_of(None)
    # A check costs about as much as the compile, 2 s: a hundredth of the time only at 300 s.
    for _ in range(2):
        assert not checks.check((X,), {}, cost_seconds=2.0)
        assert checks.next_check == 100.0 + 2.0 * 100


def test_gradients_and_their_functions_pickle_as_without_the_watch(checks: Checks) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(x**2)

    gradient = jax.grad(loss)
    gradient(X)
    assert checks() == {"ok": 1}
    made, arguments = gradient.__reduce__()  # what pickle uses
    assert made(*arguments) is gradient.__wrapped__
    # Some picklers also write the attributes of a function; ours become empty.
    assert pickle.loads(pickle.dumps(vars(loss))) == {"_firstlight_gradients": {}}
    assert isinstance(jax.jit(gradient), jax.stages.Wrapped)


@pytest.fixture
def unwatched() -> Iterator[None]:
    telemetry.start(gradient_seconds=0, interval_seconds=3600)
    yield
    telemetry.stop()


def test_without_a_budget_jaxs_gradients_are_not_replaced(unwatched: None) -> None:
    assert jax.grad is api.grad and jax.value_and_grad is api.value_and_grad
