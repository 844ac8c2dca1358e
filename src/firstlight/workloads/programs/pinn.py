"""A physics-informed network: the loss itself contains second derivatives of the network.

One hidden layer, u(x) = sum_j a_j tanh(w_j x + b_j) + c, is to solve u'' = f on [0, 1] with
u(0) = u(1) = 0 and f = -pi^2 sin(pi x). The loss is the mean squared residual at the collocation
points plus the squared boundary values; the result is the loss and its gradient with
respect to a, w, b and c.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, Step, in_float64, tensors


def make_inputs(seed: int, points: int, hidden: int) -> Arrays:
    """Output weights, input weights, biases, offset, collocation points, forcing there."""
    import numpy as np

    rng = np.random.default_rng(seed)
    output = rng.standard_normal(hidden) * hidden**-0.5
    inner = rng.standard_normal(hidden) * 2
    x = rng.uniform(0.0, 1.0, points)
    arrays = (output, inner, rng.standard_normal(hidden), np.array(0.1))
    forcing = -(np.pi**2) * np.sin(np.pi * x)
    return tuple(a.astype(np.float32) for a in (*arrays, x, forcing))


def _loss_and_gradient(
    a: Array, w: Array, b: Array, c: Array, x: Array, forcing: Array
) -> tuple[Array, ...]:
    """Loss and gradient in closed form, from the first three derivatives of tanh."""
    import numpy as np

    bend = np.tanh(np.outer(x, w) + b)
    slope = 1 - bend**2
    second = -2 * bend * slope
    third = slope * (6 * bend**2 - 2)
    residual = second @ (a * w**2) - forcing
    d_residual = 2 * residual / len(x)
    along = third.T @ d_residual
    d_a = w**2 * (second.T @ d_residual)
    d_w = 2 * a * w * (second.T @ d_residual) + a * w**2 * (third.T @ (d_residual * x))
    d_b = a * w**2 * along
    loss, d_c = np.mean(residual**2), np.zeros_like(c)
    for edge in (0.0, 1.0):
        bend = np.tanh(w * edge + b)
        value = a @ bend + c
        loss = loss + value**2
        d_a = d_a + 2 * value * bend
        d_w = d_w + 2 * value * a * (1 - bend**2) * edge
        d_b = d_b + 2 * value * a * (1 - bend**2)
        d_c = d_c + 2 * value
    return loss, d_a, d_w, d_b, d_c


def _loss(xp: Array, grad: Step, vmap: Step, params: Array, x: Array, forcing: Array) -> Array:
    """The loss in JAX or PyTorch: `xp` is `jax.numpy` or `torch`."""

    def network(x: Array, a: Array, w: Array, b: Array, c: Array) -> Array:
        return xp.tanh(w * x + b) @ a + c

    curvature = vmap(lambda point: grad(grad(network))(point, *params))(x)
    edges = network(0.0, *params) ** 2 + network(1.0, *params) ** 2
    return xp.mean((curvature - forcing) ** 2) + edges


def build_numpy(compile: Compile, seed: int, points: int, hidden: int) -> Built:
    """Loss and gradient in closed form."""
    return compile(_loss_and_gradient), make_inputs(seed, points, hidden)


def build_jax(compile: Compile, seed: int, points: int, hidden: int) -> Built:
    """Loss and gradient by a gradient of a mapped gradient of a gradient."""
    import jax
    import jax.numpy as jnp

    def step(*arrays: Array) -> Array:
        *params, x, forcing = arrays
        found = jax.value_and_grad(lambda p: _loss(jnp, jax.grad, jax.vmap, p, x, forcing))(params)
        return found[0], *found[1]

    return compile(step), jax.device_put(make_inputs(seed, points, hidden))


def build_torch(compile: Compile, seed: int, points: int, hidden: int) -> Built:
    """The same nesting with `torch.func`."""
    import torch
    from torch.func import grad, grad_and_value, vmap

    def step(*arrays: Array) -> Array:
        *params, x, forcing = arrays
        gradient, loss = grad_and_value(lambda p: _loss(torch, grad, vmap, p, x, forcing))(params)
        return loss, *gradient

    return compile(step), tensors(make_inputs(seed, points, hidden))


def reference(seed: int, points: int, hidden: int) -> Arrays:
    """Loss and gradient in float64, in closed form."""
    return in_float64(_loss_and_gradient, make_inputs(seed, points, hidden))
