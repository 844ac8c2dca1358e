"""A small-request server: a network written for one request, mapped over a batch of requests.

The three-layer network (relu, tanh, linear) takes one feature vector. JAX and PyTorch batch it with
`vmap`, as a user who writes the model for one example would; NumPy batches by matrix products.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    Step = Callable[..., Any]
    Built = tuple[Step, tuple[Any, ...]]

ANSWERS = 8


def make_inputs(seed: int, requests: int, width: int) -> tuple[NDArray[Any], ...]:
    """The weights and biases of the three layers, then the requests, one per row."""
    import numpy as np

    rng = np.random.default_rng(seed)
    arrays = []
    for fan_in, fan_out in ((width, width), (width, width), (width, ANSWERS)):
        weights = rng.standard_normal((fan_in, fan_out), dtype=np.float32)
        arrays.append(weights * np.float32((2 / fan_in) ** 0.5))
        arrays.append(rng.standard_normal(fan_out, dtype=np.float32) * np.float32(0.1))
    return (*arrays, rng.standard_normal((requests, width), dtype=np.float32))


def _answer_batch(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, batch: Any) -> Any:
    import numpy as np

    hidden = np.maximum(batch @ w1 + b1, 0)
    hidden = np.tanh(hidden @ w2 + b2)
    return hidden @ w3 + b3


def build_numpy(compile: Callable[[Step], Step], seed: int, requests: int, width: int) -> Built:
    """The whole batch by three matrix products."""
    return compile(_answer_batch), make_inputs(seed, requests, width)


def build_jax(compile: Callable[[Step], Step], seed: int, requests: int, width: int) -> Built:
    """`jax.vmap` of the one-request network."""
    import jax
    import jax.numpy as jnp

    def answer(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, request: Any) -> Any:
        hidden = jax.nn.relu(request @ w1 + b1)
        hidden = jnp.tanh(hidden @ w2 + b2)
        return hidden @ w3 + b3

    step = jax.vmap(answer, in_axes=(None,) * 6 + (0,))
    return compile(step), jax.device_put(make_inputs(seed, requests, width))


def build_torch(compile: Callable[[Step], Step], seed: int, requests: int, width: int) -> Built:
    """`torch.func.vmap` of the one-request network."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def answer(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, request: Any) -> Any:
        hidden = torch.relu(request @ w1 + b1)
        hidden = torch.tanh(hidden @ w2 + b2)
        return hidden @ w3 + b3

    step = torch.func.vmap(answer, in_dims=(None,) * 6 + (0,))
    args = tuple(torch.from_numpy(a).to(device) for a in make_inputs(seed, requests, width))
    return compile(step), args


def reference(seed: int, requests: int, width: int) -> tuple[NDArray[Any], ...]:
    """The answers in float64, by the batched matrix products."""
    import numpy as np

    arrays = (a.astype(np.float64) for a in make_inputs(seed, requests, width))
    return (_answer_batch(*arrays),)
