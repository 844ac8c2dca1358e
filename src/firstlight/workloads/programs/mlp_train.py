"""Twenty steps of Adam on a small regression network: the update compiled, the loop in Python.

This is how most training scripts are written: one compiled update, called again and again, whose
dispatch cost is paid on every step. The network is 8 -> width -> width -> 1 with tanh, the loss
half the mean squared error.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, Step, tensors

FEATURES = 8
# Kingma and Ba, "Adam", arXiv:1412.6980, algorithm 1, with its default constants.
LEARNING_RATE, DECAY_1, DECAY_2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def make_inputs(seed: int, width: int, batch: int, steps: int) -> Arrays:
    """The examples, their targets, then weights and biases of the three layers."""
    import numpy as np

    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, FEATURES), dtype=np.float32)
    y = np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    layers = []
    for fan_in, fan_out in ((FEATURES, width), (width, width), (width, 1)):
        weights = rng.standard_normal((fan_in, fan_out), dtype=np.float32)
        layers += [weights * np.float32(fan_in**-0.5), np.zeros(fan_out, np.float32)]
    return x, y, *layers


def _initial_state(params: list[Array], dtype: Array) -> tuple[Array, ...]:
    """Parameters, first and second moments, and the step count, as one nested tuple."""
    import numpy as np

    zeros = tuple(np.zeros_like(p, dtype) for p in params)
    return tuple(p.astype(dtype) for p in params), zeros, zeros, np.zeros((), dtype)


def adam(state: tuple[Array, ...], gradients: Array, sqrt: Step) -> tuple[Array, ...]:
    """The state after one Adam update, in whichever framework the arrays belong to."""
    params, means, squares, count = state
    count = count + 1
    means = tuple(DECAY_1 * m + (1 - DECAY_1) * g for m, g in zip(means, gradients, strict=True))
    squares = tuple(
        DECAY_2 * s + (1 - DECAY_2) * g * g for s, g in zip(squares, gradients, strict=True)
    )
    size = LEARNING_RATE / (1 - DECAY_1**count)
    correction = 1 - DECAY_2**count
    params = tuple(
        p - size * m / (sqrt(s / correction) + EPSILON)
        for p, m, s in zip(params, means, squares, strict=True)
    )
    return params, means, squares, count


def _train(update: Step, steps: int) -> Step:
    """The Python loop: the loss before the last update, and the first layer after it."""

    def step(state: Array, x: Array, y: Array) -> tuple[Array, Array]:
        for _ in range(steps):
            state, loss = update(state, x, y)
        return loss, state[0][0]

    return step


def _loss(xp: Array, params: Array, x: Array, y: Array) -> Array:
    """The loss in JAX or PyTorch: `xp` is `jax.numpy` or `torch`."""
    w1, b1, w2, b2, w3, b3 = params
    hidden = xp.tanh(xp.tanh(x @ w1 + b1) @ w2 + b2)
    return 0.5 * xp.mean((hidden @ w3 + b3 - y) ** 2)


def _numpy_update(state: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """One update with the gradient by hand-written backpropagation."""
    import numpy as np

    w1, b1, w2, b2, w3, b3 = state[0]
    first = np.tanh(x @ w1 + b1)
    second = np.tanh(first @ w2 + b2)
    error = second @ w3 + b3 - y
    loss = 0.5 * np.mean(error**2)
    d_out = error / len(x)
    d_second = (d_out @ w3.T) * (1 - second**2)
    d_first = (d_second @ w2.T) * (1 - first**2)
    gradients = (
        *(x.T @ d_first, d_first.sum(0)),
        *(first.T @ d_second, d_second.sum(0)),
        *(second.T @ d_out, d_out.sum(0)),
    )
    return adam(state, gradients, np.sqrt), loss


def build_numpy(compile: Compile, seed: int, width: int, batch: int, steps: int) -> Built:
    """Training with hand-written backpropagation."""
    x, y, *params = make_inputs(seed, width, batch, steps)
    return _train(compile(_numpy_update), steps), (_initial_state(params, x.dtype), x, y)


def build_jax(compile: Compile, seed: int, width: int, batch: int, steps: int) -> Built:
    """Training with `jax.value_and_grad`; the first argument is a pytree."""
    import jax
    import jax.numpy as jnp

    def update(state: Array, x: Array, y: Array) -> tuple[Array, Array]:
        loss, gradients = jax.value_and_grad(lambda p: _loss(jnp, p, x, y))(state[0])
        return adam(state, gradients, jnp.sqrt), loss

    x, y, *params = make_inputs(seed, width, batch, steps)
    arguments = jax.device_put((_initial_state(params, x.dtype), x, y))
    return _train(compile(update), steps), arguments


def build_torch(compile: Compile, seed: int, width: int, batch: int, steps: int) -> Built:
    """Training with `torch.func.grad_and_value`."""
    import torch

    def update(state: Array, x: Array, y: Array) -> tuple[Array, Array]:
        gradients, loss = torch.func.grad_and_value(lambda p: _loss(torch, p, x, y))(state[0])
        return adam(state, gradients, torch.sqrt), loss

    x, y, *params = tensors(make_inputs(seed, width, batch, steps))
    # Two sets of zeros: torch.compile guards on arguments that alias, and would compile again.
    moments = (tuple(torch.zeros_like(p) for p in params) for _ in range(2))
    state = (tuple(params), *moments, torch.zeros((), device=x.device))
    return _train(compile(update), steps), (state, x, y)


def reference(seed: int, width: int, batch: int, steps: int) -> Arrays:
    """Training in float64 with hand-written backpropagation."""
    import numpy as np

    x, y, *params = make_inputs(seed, width, batch, steps)
    state = _initial_state(params, np.float64)
    loss, weights = _train(_numpy_update, steps)(state, x.astype(float), y.astype(float))
    return np.asarray(loss), weights
