"""How often a line of the program ran, from the equations that it made."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from firstlight.trace.record import program_contents

pytestmark = pytest.mark.slow


def long_function(x: Any, y: Any) -> Any:
    a = jnp.sin(x) * jnp.exp(-(x**2)) + jnp.cos(y) * x + jnp.tanh(x * y) / (1 + y**2)
    a = a + jnp.log1p(x**2) * jnp.maximum(x, y) - jnp.arctan(x) * jnp.sqrt(1 + y**2)
    return a + jnp.where(x > y, x * a, y * a) * jnp.sum(jnp.stack([x, y, a]))


@jax.custom_jvp
def ruled(x: Any) -> Any:
    return x


@ruled.defjvp
def _ruled_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (dx,) = primals, tangents
    slopes = [jax.grad(long_function)(x + shift, 2 * x) for shift in (-0.1, 0.0, 0.1)]
    return ruled(x), dx * jnp.stack(slopes).mean()


def turned(turns: int, x: Any) -> Any:
    for _ in range(turns):
        x = ruled(x)
    return x


@pytest.mark.parametrize("turns", [1, 2, 9])
def test_repeats_of_a_line_under_a_rule_of_many_equations_are_counted(turns: int) -> None:
    # JAX makes the gradient of a jitted function from its program: of the rule's lines, which run
    # then, only the line that called the rule is left.
    gradient = jax.grad(jax.jit(functools.partial(turned, turns)))
    equations = list(program_contents._equations(jax.make_jaxpr(gradient)(1.0), set(), {}, []))
    ran = {(file, line): (n, ran) for file, line, n, ran in program_contents._by_line(equations)}
    of_line, times = ran[__file__, turned.__code__.co_firstlineno + 2]
    assert of_line >= 100 * turns
    assert times == 3 * turns  # the rule has a loop of its own, of three turns
