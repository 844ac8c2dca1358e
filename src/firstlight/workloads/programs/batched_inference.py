"""A small-request server: a network written for one request, mapped over a batch of requests.

The three-layer network (relu, tanh, linear) takes one feature vector. JAX and PyTorch batch it with
`vmap`, as a user who writes the model for one example would; NumPy batches by matrix products.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, Step, in_float64, tensors

ANSWERS = 8


def make_inputs(seed: int, requests: int, width: int) -> Arrays:
    """The weights and biases of the three layers, then the requests, one per row."""
    import numpy as np

    rng = np.random.default_rng(seed)
    arrays = []
    for fan_in, fan_out in ((width, width), (width, width), (width, ANSWERS)):
        weights = rng.standard_normal((fan_in, fan_out), dtype=np.float32)
        arrays.append(weights * np.float32((2 / fan_in) ** 0.5))
        arrays.append(rng.standard_normal(fan_out, dtype=np.float32) * np.float32(0.1))
    return (*arrays, rng.standard_normal((requests, width), dtype=np.float32))


def _answer(relu: Step, tanh: Step, *arrays: Array) -> Array:
    """The answer to one request, or to rows of them."""
    w1, b1, w2, b2, w3, b3, request = arrays
    hidden = tanh(relu(request @ w1 + b1) @ w2 + b2)
    return hidden @ w3 + b3


def _answer_batch(*arrays: Array) -> Array:
    import numpy as np

    return _answer(lambda x: np.maximum(x, 0), np.tanh, *arrays)


def build_numpy(compile: Compile, seed: int, requests: int, width: int) -> Built:
    """The whole batch by three matrix products."""
    return compile(_answer_batch), make_inputs(seed, requests, width)


def build_jax(compile: Compile, seed: int, requests: int, width: int) -> Built:
    """`jax.vmap` of the one-request network."""
    import jax
    import jax.numpy as jnp

    def answer(*arrays: Array) -> Array:
        return _answer(jax.nn.relu, jnp.tanh, *arrays)

    step = jax.vmap(answer, in_axes=(None,) * 6 + (0,))
    return compile(step), jax.device_put(make_inputs(seed, requests, width))


def build_torch(compile: Compile, seed: int, requests: int, width: int) -> Built:
    """`torch.func.vmap` of the one-request network."""
    import torch

    def answer(*arrays: Array) -> Array:
        return _answer(torch.relu, torch.tanh, *arrays)

    step = torch.func.vmap(answer, in_dims=(None,) * 6 + (0,))
    return compile(step), tensors(make_inputs(seed, requests, width))


def reference(seed: int, requests: int, width: int) -> Arrays:
    """The answers in float64, by the batched matrix products."""
    return in_float64(lambda *arrays: (_answer_batch(*arrays),), make_inputs(seed, requests, width))
