"""Gradient-based hyperparameter tuning: differentiate through an inner optimisation.

The inner problem is ridge regression by `inner_steps` steps of gradient descent; the result is the
validation loss of the fitted weights, and its gradient with respect to the logarithms of the ridge
penalty and the learning rate. JAX scans over the inner steps, PyTorch loops; NumPy and the
reference carry the two tangents of the weights forward.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, in_float64, tensors

PENALTY, LEARNING_RATE = 0.1, 0.05


def make_inputs(seed: int, rows: int, features: int, inner_steps: int) -> Arrays:
    """Log penalty and log rate, training rows and targets, validation rows and targets."""
    import numpy as np

    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(features)
    # Column scales span a factor of ten, so that the descent is far from converged in some
    # directions.
    x = rng.standard_normal((2, rows, features)) * np.geomspace(1.0, 0.1, features)
    y = x @ truth + 0.5 * rng.standard_normal((2, rows))
    logs = np.log([PENALTY, LEARNING_RATE])
    arrays = (logs, x[0], y[0], x[1], y[1])
    return tuple(a.astype(np.float32) for a in arrays)


def _loss_and_gradient(steps: int, logs: Array, x: Array, y: Array, *held: Array) -> Array:
    """Validation loss and its gradient, by forward tangents of the descent."""
    import numpy as np

    penalty, rate = np.exp(logs)
    weights = np.zeros(x.shape[1], x.dtype)
    by_penalty, by_rate = np.zeros_like(weights), np.zeros_like(weights)
    for _ in range(steps):
        slope = x.T @ (x @ weights - y) / len(x) + penalty * weights
        turn_penalty = x.T @ (x @ by_penalty) / len(x) + penalty * (by_penalty + weights)
        turn_rate = x.T @ (x @ by_rate) / len(x) + penalty * by_rate
        weights = weights - rate * slope
        by_penalty = by_penalty - rate * turn_penalty
        by_rate = by_rate - rate * (turn_rate + slope)
    x_v, y_v = held
    error = x_v @ weights - y_v
    pull = x_v.T @ error / len(x_v)
    return 0.5 * np.mean(error**2), np.stack([pull @ by_penalty, pull @ by_rate])


def _ridge_loss(weights: Array, penalty: Array, x: Array, y: Array) -> Array:
    return 0.5 * ((x @ weights - y) ** 2).mean() + 0.5 * penalty * (weights @ weights)


def build_numpy(compile: Compile, seed: int, rows: int, features: int, inner_steps: int) -> Built:
    """Loss and gradient by forward tangents."""
    step = compile(lambda *arrays: _loss_and_gradient(inner_steps, *arrays))
    return step, make_inputs(seed, rows, features, inner_steps)


def build_jax(compile: Compile, seed: int, rows: int, features: int, inner_steps: int) -> Built:
    """Reverse differentiation of a `lax.scan` whose body itself takes a gradient."""
    import jax
    import jax.numpy as jnp

    def outer_loss(logs: Array, x: Array, y: Array, x_v: Array, y_v: Array) -> Array:
        penalty, rate = jnp.exp(logs)

        def descend(weights: Array, _: None) -> tuple[Array, None]:
            return weights - rate * jax.grad(_ridge_loss)(weights, penalty, x, y), None

        start = jnp.zeros(features, x.dtype)
        weights, _ = jax.lax.scan(descend, start, length=inner_steps)
        return 0.5 * jnp.mean((x_v @ weights - y_v) ** 2)

    arguments = make_inputs(seed, rows, features, inner_steps)
    return compile(jax.value_and_grad(outer_loss)), jax.device_put(arguments)


def build_torch(compile: Compile, seed: int, rows: int, features: int, inner_steps: int) -> Built:
    """Reverse differentiation of a Python loop over compiled inner steps.

    The inner step is compiled, not the loop: torch.compile unrolls loops, which took a hundred
    seconds for fifty steps of this one.
    """
    import torch

    def descend(weights: Array, penalty: Array, rate: Array, x: Array, y: Array) -> Array:
        return weights - rate * torch.func.grad(_ridge_loss)(weights, penalty, x, y)

    compiled_descend = compile(descend)

    def step(logs: Array, x: Array, y: Array, x_v: Array, y_v: Array) -> tuple[Array, Array]:
        logs = logs.detach().requires_grad_()
        penalty, rate = torch.exp(logs).unbind()
        weights = torch.zeros_like(x[0])
        for _ in range(inner_steps):
            weights = compiled_descend(weights, penalty, rate, x, y)
        loss = 0.5 * torch.mean((x_v @ weights - y_v) ** 2)
        (gradient,) = torch.autograd.grad(loss, logs)
        return loss.detach(), gradient

    return step, tensors(make_inputs(seed, rows, features, inner_steps))


def reference(seed: int, rows: int, features: int, inner_steps: int) -> Arrays:
    """Loss and gradient in float64, by forward tangents."""
    inputs = make_inputs(seed, rows, features, inner_steps)
    return in_float64(lambda *arrays: _loss_and_gradient(inner_steps, *arrays), inputs)
