"""Loss and gradients of a network with parameters in float32 and arithmetic in `precision`.

Parameters and examples are cast on input ("bfloat16" or "float32"); the loss and the gradients are
float32. Layers 32 -> width -> width -> 1 with SiLU. NumPy has no bfloat16: its version always
computes in float32, and is compared with the float32 variant only.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, Step, in_float64, tensors

FEATURES = 32


def make_inputs(seed: int, precision: str, width: int, batch: int) -> Arrays:
    """The three weight matrices, the examples, their targets: all in float32."""
    import numpy as np

    rng = np.random.default_rng(seed)
    shapes = ((FEATURES, width), (width, width), (width, 1), (batch, FEATURES), (batch, 1))
    scales = ((2 / FEATURES) ** 0.5, (2 / width) ** 0.5, (2 / width) ** 0.5, 1.0, 1.0)
    return tuple(
        rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        for shape, scale in zip(shapes, scales, strict=True)
    )


def _loss_and_gradients(w1: Array, w2: Array, w3: Array, x: Array, y: Array) -> tuple[Array, ...]:
    """Loss, norms of the three gradients, first gradient; backpropagation written by hand."""
    import numpy as np

    def silu(z: Array) -> tuple[Array, Array]:
        gate = 1 / (1 + np.exp(-z))
        return z * gate, gate * (1 + z * (1 - gate))

    first, first_slope = silu(x @ w1)
    second, second_slope = silu(first @ w2)
    error = second @ w3 - y
    d_out = 2 * error / len(x)
    d_second = (d_out @ w3.T) * second_slope
    d_first = (d_second @ w2.T) * first_slope
    gradients = (x.T @ d_first, first.T @ d_second, second.T @ d_out)
    norms = np.stack([np.sqrt((g**2).sum()) for g in gradients])
    return np.mean(error**2), norms, gradients[0]


def _loss(silu: Step, cast: Step, precision: str, weights: Array, x: Array, y: Array) -> Array:
    """The loss in JAX or PyTorch; `cast` takes an array and the name of a dtype."""
    hidden = cast(x, precision)
    for matrix in weights[:-1]:
        hidden = silu(hidden @ cast(matrix, precision))
    return ((cast(hidden @ cast(weights[-1], precision), "float32") - y) ** 2).mean()


def build_numpy(compile: Compile, seed: int, precision: str, width: int, batch: int) -> Built:
    """Loss and gradients in float32."""
    return compile(_loss_and_gradients), make_inputs(seed, precision, width, batch)


def build_jax(compile: Compile, seed: int, precision: str, width: int, batch: int) -> Built:
    """Loss and gradients by `jax.value_and_grad` through the casts."""
    import jax
    import jax.numpy as jnp

    def loss_of(*arrays: Array) -> Array:
        return _loss(jax.nn.silu, lambda a, name: a.astype(name), precision, *arrays)

    def step(w1: Array, w2: Array, w3: Array, x: Array, y: Array) -> tuple[Array, ...]:
        loss, gradients = jax.value_and_grad(loss_of)((w1, w2, w3), x, y)
        norms = jnp.stack([jnp.linalg.norm(g.ravel()) for g in gradients])
        return loss, norms, gradients[0]

    return compile(step), jax.device_put(make_inputs(seed, precision, width, batch))


def build_torch(compile: Compile, seed: int, precision: str, width: int, batch: int) -> Built:
    """Loss and gradients by `torch.func.grad_and_value` through the casts."""
    import torch

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}

    def loss_of(*arrays: Array) -> Array:
        silu = torch.nn.functional.silu
        return _loss(silu, lambda a, name: a.to(dtypes[name]), precision, *arrays)

    def step(w1: Array, w2: Array, w3: Array, x: Array, y: Array) -> tuple[Array, ...]:
        gradients, loss = torch.func.grad_and_value(loss_of)((w1, w2, w3), x, y)
        norms = torch.stack([torch.linalg.vector_norm(g) for g in gradients])
        return loss, norms, gradients[0]

    return compile(step), tensors(make_inputs(seed, precision, width, batch))


def reference(seed: int, precision: str, width: int, batch: int) -> Arrays:
    """Loss and gradients in float64, whatever `precision` the program under test uses."""
    return in_float64(_loss_and_gradients, make_inputs(seed, precision, width, batch))
