"""Functions of whole batches: those that mix rows are refused, the others are served."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firstlight import serve
from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.compiled_models import LoadError, load

pytestmark = pytest.mark.slow

Function = Callable[[Any], Any]
FLOATS, INTS, FLAGS = (serve.Input(dtype, (4,)) for dtype in ("float32", "int32", "bool"))
MATRIX = serve.Input("float32", (3, 3))
WEIGHTS = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
TABLE = np.random.default_rng(2).normal(size=(50, 4)).astype(np.float32)

MIXING: dict[str, tuple[serve.Input, Function]] = {
    "nanmean": (FLOATS, lambda x: x - jnp.nanmean(x, axis=0)),
    "sort": (FLOATS, lambda x: jnp.sort(x, axis=0)),
    "cumsum": (FLOATS, lambda x: jnp.cumsum(x, axis=0)),
    "shift": (FLOATS, lambda x: jnp.roll(x, 1, axis=0)),
    "int max": (INTS, lambda x: x + x.max(axis=0)),
    "any": (FLAGS, lambda x: x | x.any(axis=0)),
    "all": (FLAGS, lambda x: x & x.all(axis=0)),
    "rows": (FLOATS, lambda x: x * x.shape[0]),
    "arange": (FLOATS, lambda x: x + jnp.arange(len(x), dtype=x.dtype)[:, None]),
    "random": (FLOATS, lambda x: x + jax.random.normal(jax.random.key(0), x.shape)),
}


def halvings(x: Any) -> Any:
    """How often each number can be halved: in a loop that ends with the slowest row."""

    def step(state: Any) -> Any:
        y, n = state
        return jnp.where(abs(y) > 1, y / 2, y), n + (abs(y) > 1)

    return jax.lax.while_loop(
        lambda state: (abs(state[0]) > 1).any(), step, (x, jnp.zeros(x.shape, jnp.int32))
    )[1]


def cholesky(x: Any) -> Any:
    return jnp.linalg.cholesky(x @ x.mT + jnp.eye(3, dtype=x.dtype))


def dropout(x: Any, training: bool = False) -> Any:
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape) if training else 1.0
    return jnp.tanh(x * kept @ WEIGHTS)


INDEPENDENT: dict[str, tuple[serve.Input, Function]] = {
    "while_loop": (FLOATS, halvings),
    "gather": (INTS, lambda i: jnp.take_along_axis(jnp.stack([i, i + 1], 1), i[:, None] % 2, 1)),
    "cholesky": (MATRIX, cholesky),
    "pad": (FLOATS, lambda x: jnp.pad(x, ((0, 0), (1, 2)))),
    "embedding": (INTS, lambda i: jnp.asarray(TABLE)[i]),
    "dropout": (FLOATS, dropout),
    "softmax": (FLOATS, lambda x: jax.nn.softmax(x @ WEIGHTS, axis=1)),
    "solve": (MATRIX, lambda x: jnp.linalg.solve(x, jnp.ones((*x.shape[:2], 1), x.dtype))),
    "sort": (FLOATS, lambda x: jnp.sort(x, axis=1)),
    "bfloat16": (FLOATS, lambda x: (x.astype(jnp.bfloat16) @ WEIGHTS).astype(jnp.float32)),
    "argmax": (FLOATS, lambda x: jnp.argmax(x @ WEIGHTS, axis=1)),
    "xor": (FLAGS, lambda x: x ^ x[:, ::-1]),
}


def loaded(watch: CompileWatch, given: serve.Input, function: Function, **options: Any) -> None:
    options = {"buckets": (1, 2, 4, 8), "batched": True, **options}
    load(named(given, function, options), watch)


def named(given: serve.Input, function: Function, options: Any) -> serve.Model:
    def f(x: Any) -> Any:  # the argument of JAX's functions has no name
        return function(x)

    return serve.model(inputs={"x": given}, **options)(f)


@pytest.mark.parametrize("name", MIXING)
def test_a_function_that_mixes_rows_is_refused_with_row_position_and_size(
    watch: CompileWatch, name: str
) -> None:
    message = r"of the row x=\[.* at position \d+ of [248] rows, and .* (alone|there among others):"
    with pytest.raises(LoadError, match=message):
        loaded(watch, *MIXING[name])


@pytest.mark.parametrize("name", MIXING)
def test_mixing_shows_with_a_single_bucket_too(watch: CompileWatch, name: str) -> None:
    with pytest.raises(LoadError, match="would affect each other"):
        loaded(watch, *MIXING[name], buckets=(4,))


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_function_of_independent_rows_is_served(watch: CompileWatch, name: str) -> None:
    loaded(watch, *INDEPENDENT[name])


def test_a_function_that_fails_for_all_random_rows_is_refused_and_not_served_unchecked(
    watch: CompileWatch,
) -> None:
    def ones_only(x: Any) -> Any:
        if not (x == 1).all():
            raise ValueError("only ones")
        return x

    def called(x: Any) -> Any:
        return jax.pure_callback(ones_only, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(LoadError, match="fails for every random row"):
        loaded(watch, FLOATS, called)


#: Steps that keep the shape [rows, 4] and rows apart.
APART: list[Function] = [
    jnp.tanh,
    lambda x: x @ WEIGHTS,
    lambda x: x[:, ::-1] * 2 + 1,
    lambda x: jax.nn.softmax(x, axis=1),
    lambda x: jnp.where(x > 0, x, 0.1 * x),
    lambda x: jnp.cumsum(x, axis=1),
    lambda x: x - x.mean(axis=1, keepdims=True),
    lambda x: jax.lax.fori_loop(0, 3, lambda i, s: 0.5 * s + x, x),
    lambda x: jnp.sort(x, axis=1),
    lambda x: jnp.clip(x, -3, 3),
    lambda x: x + jnp.asarray(TABLE)[jnp.argmax(x, axis=1)],
    jax.vmap(lambda row: row * jnp.linalg.norm(row)),
]
#: Steps that keep the shape and mix rows.
TOGETHER: list[Function] = [
    lambda x: x - x.mean(axis=0),
    lambda x: x / (1 + abs(x).max(axis=0)),
    lambda x: 0.9 * x + 0.1 * x[::-1],
    lambda x: jnp.cumsum(x, axis=0),
    lambda x: x + 1e-3 * x.sum(axis=0),
    lambda x: x * (1 + 0.1 * jnp.arange(len(x))[:, None]),
    lambda x: x * (1 + 0.1 * len(x)),
    lambda x: jnp.where(x > jnp.median(x, axis=0), x, -x),
    lambda x: x + jnp.roll(x, 1, axis=0) * (jnp.roll(x, 1, axis=0) > 0),
    lambda x: x @ (x.T @ x) / 100,
    lambda x: x + (x @ x.T).max(axis=1, keepdims=True),
    lambda x: jnp.where(jnp.isnan(x).any(), 0.0, x),
]


def composed(seed: int, mixing: bool) -> Function:
    """Several steps in random order; of a mixing function, one of them mixes."""
    draw = random.Random(seed)
    steps = [draw.choice(APART) for _ in range(draw.randint(1, 4))]
    if mixing:
        steps.insert(draw.randint(0, len(steps)), draw.choice(TOGETHER))

    def function(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return function


@pytest.mark.parametrize("seed", range(12))
def test_random_functions_are_refused_if_and_only_if_they_mix(
    watch: CompileWatch, seed: int
) -> None:
    loaded(watch, FLOATS, composed(seed, mixing=False), buckets=(1, 4))
    with pytest.raises(LoadError, match="would affect each other"):
        loaded(watch, FLOATS, composed(seed, mixing=True), buckets=(1, 4))


@pytest.mark.parametrize("name", [name for name in MIXING if name != "arange"])
def test_mixing_cannot_be_written_in_a_function_of_one_row(watch: CompileWatch, name: str) -> None:
    """The same functions, given one row, are the same for every row, whatever the others are."""
    given, function = MIXING[name]
    made = load(named(given, function, {"buckets": (1, 8)}), watch)
    x = np.random.default_rng(3).integers(0, 9, (8, 4)).astype(given.dtype)
    [together] = made.run(made.buckets[1], [x])
    for row, result in zip(x, together, strict=True):
        [alone] = made.run(made.buckets[0], [row[None]])
        np.testing.assert_array_equal(alone[0], result)


@jax.custom_batching.custom_vmap
def centred(x: Any) -> Any:
    return x


@centred.def_vmap
def _(size: int, batched: Any, x: Any) -> Any:
    return x - x.mean(axis=0), True


def called(function: Any, method: str) -> Function:
    return lambda x: jax.pure_callback(
        function, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method=method
    )


@pytest.mark.parametrize(
    "function",
    [centred, called(lambda x: np.sort(x, axis=0), "expand_dims")],
    ids=["custom_vmap", "callback"],
)
def test_rules_for_batches_in_a_function_of_one_row_are_tried_too(
    watch: CompileWatch, function: Function
) -> None:
    with pytest.raises(LoadError, match="would affect each other"):
        loaded(watch, FLOATS, function, batched=False)


def test_a_callback_that_is_called_row_by_row_is_served_without_a_trial(
    watch: CompileWatch,
) -> None:
    def ones_only(x: Any) -> Any:
        assert (np.asarray(x) == 1).all()
        return np.asarray(x)

    loaded(watch, FLOATS, called(ones_only, "sequential"), batched=False)
