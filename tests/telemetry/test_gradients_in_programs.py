"""Gradients that are taken within jitted functions are checked, on the program's own values."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from scraping import Checks

Batch = tuple[Any, Any]
KEY = jax.random.key(7)


def with_rule(factor: float) -> Any:
    """A square whose own rule is right if the factor is 2."""

    @jax.custom_vjp
    def square(x: Any) -> Any:
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (factor * g * x,))
    return square


right, wrong = with_rule(2.0), with_rule(1.0)


def network(parameters: Any, batch: Batch, square: Any) -> Any:
    x, y = batch
    hidden = square(x @ parameters["w"] + parameters["b"])
    scores = jax.nn.log_softmax(hidden @ parameters["v"])
    return -jnp.mean(jnp.take_along_axis(scores, y[:, None], 1))


def parameters_and_batch() -> tuple[Any, Batch]:
    one, two, three = jax.random.split(KEY, 3)
    parameters = {
        "w": 0.3 * jax.random.normal(one, (5, 8)),
        "b": jnp.zeros(8),
        "v": 0.3 * jax.random.normal(two, (8, 3)),
    }
    return parameters, (jax.random.normal(three, (16, 5)), jnp.arange(16) % 3)


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
        scale = jnp.mean(parameters["w"] ** 2)  # constant for the gradient, though it is of w

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
            gradient = jax.grad(network)(parameters, batch, square)  # of what is around the loop
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
def test_a_right_rule_within_a_step_is_found_right(make: Any, checks: Checks) -> None:
    trained(make(right))
    assert set(checks()) == {"ok"}


@pytest.mark.parametrize("make", STEPS)
def test_a_wrong_rule_within_a_step_is_reported_when_it_was_seen_twice(
    make: Any, checks: Checks
) -> None:
    trained(make(wrong), 6)
    found = checks()
    assert found["wrong"] >= 1 and found["uncertain"] >= 1
