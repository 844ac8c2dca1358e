"""Gradient-based hyperparameter tuning: differentiate through an inner optimisation.

The inner problem is ridge regression by `inner_steps` steps of gradient descent; the result is the
validation loss of the fitted weights, and its gradient with respect to the logarithms of the ridge
penalty and the learning rate. JAX scans over the inner steps, PyTorch loops; NumPy and the
reference carry the two tangents of the weights forward.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    Step = Callable[..., Any]
    Built = tuple[Step, tuple[Any, ...]]
PENALTY, LEARNING_RATE = 0.1, 0.05


def make_inputs(seed: int, rows: int, features: int, inner_steps: int) -> tuple[NDArray[Any], ...]:
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


def _loss_and_gradient(steps: int, logs: Any, x: Any, y: Any, x_v: Any, y_v: Any) -> Any:
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
    error = x_v @ weights - y_v
    pull = x_v.T @ error / len(x_v)
    return 0.5 * np.mean(error**2), np.stack([pull @ by_penalty, pull @ by_rate])


def build_numpy(
    compile: Callable[[Step], Step], seed: int, rows: int, features: int, inner_steps: int
) -> Built:
    """Loss and gradient by forward tangents."""

    def step(*args: Any) -> Any:
        return _loss_and_gradient(inner_steps, *args)

    return compile(step), make_inputs(seed, rows, features, inner_steps)


def build_jax(
    compile: Callable[[Step], Step], seed: int, rows: int, features: int, inner_steps: int
) -> Built:
    """Reverse differentiation of a `lax.scan` whose body itself takes a gradient."""
    import jax
    import jax.numpy as jnp

    def inner_loss(weights: Any, penalty: Any, x: Any, y: Any) -> Any:
        return 0.5 * jnp.mean((x @ weights - y) ** 2) + 0.5 * penalty * weights @ weights

    def outer_loss(logs: Any, x: Any, y: Any, x_v: Any, y_v: Any) -> Any:
        penalty, rate = jnp.exp(logs)

        def descend(weights: Any, _: None) -> tuple[Any, None]:
            return weights - rate * jax.grad(inner_loss)(weights, penalty, x, y), None

        start = jnp.zeros(features, x.dtype)
        weights, _ = jax.lax.scan(descend, start, length=inner_steps)
        return 0.5 * jnp.mean((x_v @ weights - y_v) ** 2)

    args = jax.device_put(make_inputs(seed, rows, features, inner_steps))
    return compile(jax.value_and_grad(outer_loss)), args


def build_torch(
    compile: Callable[[Step], Step], seed: int, rows: int, features: int, inner_steps: int
) -> Built:
    """Reverse differentiation of a Python loop over compiled inner steps.

    The inner step is compiled, not the loop: torch.compile unrolls loops, which took a hundred
    seconds for fifty steps of this one.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def inner_loss(weights: Any, penalty: Any, x: Any, y: Any) -> Any:
        return 0.5 * torch.mean((x @ weights - y) ** 2) + 0.5 * penalty * (weights @ weights)

    def descend(weights: Any, penalty: Any, rate: Any, x: Any, y: Any) -> Any:
        return weights - rate * torch.func.grad(inner_loss)(weights, penalty, x, y)

    compiled_descend = compile(descend)

    def step(logs: Any, x: Any, y: Any, x_v: Any, y_v: Any) -> tuple[Any, Any]:
        logs = logs.detach().requires_grad_()
        penalty, rate = torch.exp(logs).unbind()
        weights = torch.zeros_like(x[0])
        for _ in range(inner_steps):
            weights = compiled_descend(weights, penalty, rate, x, y)
        loss = 0.5 * torch.mean((x_v @ weights - y_v) ** 2)
        (gradient,) = torch.autograd.grad(loss, logs)
        return loss.detach(), gradient

    inputs = make_inputs(seed, rows, features, inner_steps)
    return step, tuple(torch.from_numpy(a).to(device) for a in inputs)


def reference(seed: int, rows: int, features: int, inner_steps: int) -> tuple[NDArray[Any], ...]:
    """Loss and gradient in float64, by forward tangents."""
    import numpy as np

    inputs = (a.astype(np.float64) for a in make_inputs(seed, rows, features, inner_steps))
    loss, gradient = _loss_and_gradient(inner_steps, *inputs)
    return np.asarray(loss), gradient
