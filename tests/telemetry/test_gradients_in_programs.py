"""Gradients within jitted functions are checked, with the program's own values."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import api
from scraping import Checks, Scrape, everything

from firstlight import telemetry
from firstlight.telemetry.watch import gradient_checks
from firstlight.telemetry.watch.process import ProcessWatch

Batch = tuple[Any, Any]
X = np.linspace(0.5, 2.0, 6, dtype=np.float32)


def with_rule(factor: float) -> Any:
    """A square with a custom rule, which is correct if the factor is 2."""

    @jax.custom_vjp
    def square(x: Any) -> Any:
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (factor * g * x,))
    return square


right, wrong = with_rule(2.0), with_rule(1.0)


def network(parameters: Any, batch: Batch, square: Any) -> Any:
    x, y = batch
    return jnp.mean((square(x @ parameters["w"] + parameters["b"]) @ parameters["v"] - y) ** 2)


def parameters_and_batch() -> tuple[Any, Batch]:
    draw = np.random.default_rng(7)
    shapes = {"w": (5, 8), "b": (8,), "v": (8,)}
    parameters = {name: 0.3 * draw.normal(size=shape) for name, shape in shapes.items()}
    batch = (draw.normal(size=(16, 5)).astype(np.float32), np.arange(16) % 3)
    return jax.tree.map(lambda p: jax.device_put(p.astype(np.float32)), parameters), batch


def descent(parameters: Any, gradient: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)


def plain(square: Any) -> Any:
    @jax.jit
    def step(parameters: Any, batch: Batch) -> Any:
        value, gradient = jax.value_and_grad(network)(parameters, batch, square)
        return descent(parameters, gradient), value

    return step


def closing_over_its_batch(square: Any) -> Any:
    @jax.jit
    def step(parameters: Any, batch: Batch) -> Any:
        scale = jnp.mean(
            parameters["w"] ** 2
        )  # a constant for the gradient, although it depends on w

        def loss(p: Any) -> Any:
            return network(p, batch, square) * (1 + scale), {"scale": scale}

        gradient, _ = jax.grad(loss, has_aux=True)(parameters)
        return descent(parameters, gradient), scale

    return step


def donating(square: Any) -> Any:
    @partial(jax.jit, donate_argnums=0, static_argnames="rate")
    def step(parameters: Any, batch: Batch, rate: float = 0.1) -> Any:
        value, gradient = jax.value_and_grad(network)(parameters, batch, square)
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradient), value

    return lambda parameters, batch: step(parameters, batch, rate=0.2)


def several_steps_in_a_scan(square: Any) -> Any:
    @jax.jit
    def update(parameters: Any, batch: Batch) -> Any:
        value, gradient = jax.value_and_grad(network)(parameters, batch, square)
        return descent(parameters, gradient), value

    @jax.jit
    def steps(parameters: Any, batch: Batch) -> Any:
        batches = jax.tree.map(lambda a: jnp.stack([a, a[::-1]]), batch)
        parameters, values = jax.lax.scan(update, parameters, batches)
        return parameters, values[-1]

    return steps


def in_a_loop_around_constants(square: Any) -> Any:
    @jax.jit
    def steps(parameters: Any, batch: Batch) -> Any:
        def body(_: Any, total: Any) -> Any:
            gradient = jax.grad(network)(
                parameters, batch, square
            )  # with respect to values from outside the loop
            return jax.tree.map(jnp.add, total, gradient)

        zeros = jax.tree.map(jnp.zeros_like, parameters)
        total = jax.lax.fori_loop(0, batch[1][2], body, zeros)
        return descent(parameters, total), total["b"][0]

    return steps


def of_each_example(square: Any) -> Any:
    @jax.jit
    def step(parameters: Any, batch: Batch) -> Any:
        one = jax.grad(lambda p, x, y: network(p, (x[None], y[None]), square))
        gradients = jax.vmap(one, (None, 0, 0))(parameters, *batch)
        mean = jax.tree.map(lambda g: g.mean(0), gradients)
        return descent(parameters, mean), mean["b"][0]

    return step


def with_checkpoint_in_a_branch(square: Any) -> Any:
    @jax.jit
    def step(parameters: Any, batch: Batch) -> Any:
        loss = jax.checkpoint(partial(network, square=square))

        def update(p: Any) -> Any:
            return descent(p, jax.grad(loss)(p, batch))

        parameters = jax.lax.cond(batch[1][1] > 0, update, lambda p: p, parameters)
        return parameters, batch[0][0, 0]

    return step


STEPS = [
    plain,
    closing_over_its_batch,
    donating,
    several_steps_in_a_scan,
    in_a_loop_around_constants,
    of_each_example,
    with_checkpoint_in_a_branch,
]


def trained(step: Any, times: int = 4) -> Any:
    parameters, batch = parameters_and_batch()
    for _ in range(times):
        parameters, value = step(parameters, batch)
    return jax.device_get((parameters, value))


@pytest.mark.parametrize("make", STEPS)
def test_a_correct_rule_within_a_step_passes(make: Any, checks: Checks) -> None:
    trained(make(right), 3)
    assert set(checks()) == {"ok"}


@pytest.mark.parametrize("make", STEPS)
def test_a_wrong_rule_within_a_step_is_reported_after_two_failed_checks(
    make: Any, checks: Checks
) -> None:
    trained(make(wrong), 6)
    found = checks()
    assert found["wrong"] >= 1 and found["uncertain"] >= 1


@pytest.mark.parametrize("make", [donating, several_steps_in_a_scan])
def test_a_step_is_the_same_program_and_gives_the_same_bits_under_watch(
    make: Any, every_call: None
) -> None:
    traced: list[bool] = []

    def square(x: Any) -> Any:
        traced.append(True)
        return right(x)

    expected = trained(make(square))
    times = len(traced)
    watch = telemetry.start(interval_seconds=3600, gradient_seconds=600)
    found = trained(make(square))
    counts = everything(watch)
    telemetry.stop()
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert len(traced) == 2 * times  # a check does not run the program's Python code
    assert counts["firstlight_gradient_checks_total", frozenset({("result", "ok")})] >= 2


def test_the_compiled_program_is_the_same_as_without_the_watch(watch: ProcessWatch) -> None:
    def step(grad: Any, parameters: Any, batch: Batch) -> Any:
        return descent(parameters, grad(network)(parameters, batch, right))

    given = parameters_and_batch()
    with_watch, without = (
        jax.jit(partial(step, grad)).lower(*given).as_text() for grad in (jax.grad, api.grad)
    )
    assert with_watch == without


def check_steps_of(loss: Any, times: int = 6, x: Any = X) -> None:
    """Run a program that takes the gradient of this loss."""

    @jax.jit
    def step(x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(x)
        return x - 0.01 * gradient, value

    for _ in range(times):
        x, _ = step(x)


def of_a_softmax(square: Any) -> Any:
    """JAX applies stop_gradient to the maximum, although that changes nothing."""
    return lambda x: -jax.nn.log_softmax(square(x))[0]


def with_a_constant_part(square: Any) -> Any:
    """Differences that ignore `stop_gradient` would be twice as large. In a scan."""

    def loss(x: Any) -> Any:
        def body(total: Any, y: Any) -> Any:
            return total + jax.lax.stop_gradient(y) * square(y), None

        return jax.lax.scan(body, jnp.float32(0), x)[0]

    return loss


def straight_through(square: Any) -> Any:
    return lambda x: jnp.sum(square(x + jax.lax.stop_gradient(jnp.round(x) - x)))


@pytest.mark.parametrize("make", [of_a_softmax, with_a_constant_part, straight_through])
def test_inputs_of_stop_gradient_are_held_constant_in_differences(
    make: Any, checks: Checks
) -> None:
    check_steps_of(make(right), 3)
    assert set(checks()) == {"ok"}


def test_a_wrong_rule_is_found_behind_stop_gradient(checks: Checks) -> None:
    check_steps_of(with_a_constant_part(wrong))
    assert checks()["wrong"] >= 1


def clipped(x: Any) -> Any:
    @jax.custom_vjp
    def clip(x: Any) -> Any:
        return x

    clip.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))
    return jnp.sum(clip(x) ** 2)


def rounded(x: Any) -> Any:
    @jax.custom_vjp
    def rounding(x: Any) -> Any:
        return jnp.round(x)

    rounding.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    return jnp.sum(rounding(4 * x) + x**2)


@pytest.mark.parametrize("loss", [clipped, rounded])
def test_an_intentionally_different_gradient_is_not_reported_wrong(
    loss: Any, checks: Checks
) -> None:
    check_steps_of(loss, 4)
    assert set(checks()) <= {"not_comparable", "uncertain"} and checks()["not_comparable"] >= 1


def in_half_precision(x: Any) -> Any:
    return jnp.sum(jnp.tanh(x.astype(jnp.bfloat16)) ** 2).astype(jnp.float32)


def at_a_kink(x: Any) -> Any:
    return jnp.sum(jax.nn.relu(x - jnp.asarray(X)))


@pytest.mark.parametrize("loss", [in_half_precision, at_a_kink])
def test_inconclusive_differences_raise_no_alarm(loss: Any, checks: Checks) -> None:
    for _ in range(2):
        check_steps_of(loss, 3)
    assert set(checks()) <= {"ok", "uncertain"} and checks()


def test_integers_are_not_moved_and_second_derivatives_are_checked(checks: Checks) -> None:
    @jax.jit
    def step(x: Any, counts: Any) -> Any:
        gradient, none = jax.grad(lambda x, n: jnp.sum(x**3 * n), (0, 1), allow_int=True)(x, counts)
        second = jax.grad(lambda x: jnp.vdot(jax.grad(lambda y: jnp.sum(y**3))(x), x))(x)
        assert none.dtype == jax.dtypes.float0
        return gradient + second

    for _ in range(6):
        step(X, np.arange(6))
    assert checks() == {"ok": 6}


def test_a_variable_that_the_function_also_holds_is_not_moved(checks: Checks) -> None:
    """In the program, a constant of the function may be the same variable as its argument."""

    class Model:
        def __init__(self, old: Any) -> None:
            self.old = {"x": old}

        def overlap(self, x: Any, more: Any = None) -> Any:
            return jnp.vdot(
                x, self.old["x"]
            )  # its gradient is old; moving both would give twice that

    @jax.jit
    def step(x: Any, y: Any) -> Any:
        one = jax.grad(lambda z: jnp.vdot(x, z))(x)
        two = jax.grad(jnp.vdot)(x, x)
        three = jax.grad(Model(x).overlap)(x)
        # Here y can be moved, and x cannot.
        four, five = jax.grad(lambda z, y: jnp.vdot(partial(jnp.vdot, x)(z) * y, y), (0, 1))(x, y)
        return one + two + three + four + five

    for _ in range(4):
        step(X, X)
    assert checks() == {"out_of_reach": 3, "ok": 1}


def test_a_step_with_a_name_is_checked_and_timed(value: Scrape, every_call: None) -> None:
    for _ in range(3):
        with telemetry.step("named"):
            check_steps_of(lambda x: jnp.sum(x**2), 2)
    assert value("gradient_checks_total", result="ok") == 6
    assert value("step_duration_seconds_count", function="named", phase="cold") == 3


def test_effects_are_not_repeated_and_what_needs_them_is_not_checked(checks: Checks) -> None:
    said: list[float] = []

    def tells(x: Any) -> Any:  # which the value does not need
        jax.debug.callback(lambda y: said.append(float(y)), x[0])
        return jnp.sum(x**2)

    def tells_in_a_loop(x: Any) -> Any:
        def body(total: Any, y: Any) -> Any:
            jax.debug.callback(lambda z: said.append(float(z)), y)
            return total + y**2, None

        return jax.lax.scan(body, jnp.float32(0), x)[0]

    check_steps_of(tells, 2)
    check_steps_of(tells_in_a_loop, 2)
    jax.effects_barrier()
    assert len(said) == 2 + 2 * len(X)
    assert checks() == {"ok": 2, "effects": 1}


def test_a_branch_that_is_not_taken_is_not_checked(checks: Checks) -> None:
    @jax.jit
    def step(x: Any, is_on: Any) -> Any:
        return jax.lax.cond(is_on, jax.grad(lambda y: jnp.sum(jnp.sqrt(y))), lambda y: y, x)

    for _ in range(2):
        step(-X, False)
    assert checks() == {}
    step(X, True)
    assert checks() == {"ok": 1}


def test_programs_on_several_processes_are_checked_if_one_can_evaluate_them(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("all",))
    everywhere = jax.NamedSharding(mesh, jax.P("all"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    check_steps_of(lambda x: jnp.sum(x**2), 1)
    assert checks() == {"ok": 1}
    check_steps_of(lambda x: jnp.sum(jax.lax.with_sharding_constraint(x, everywhere) ** 2), 1)
    assert checks() == {"ok": 1, "not_addressable": 1}


@pytest.mark.parametrize("make", [plain, donating])
def test_arrays_too_large_to_move_or_copy_are_over_budget(
    make: Any, checks: Checks, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gradient_checks, "_MAX_BYTES", 100)
    trained(make(right), 3)
    assert checks() == {"over_budget": 1}
    assert capfd.readouterr().err.count("was not checked") == 1
