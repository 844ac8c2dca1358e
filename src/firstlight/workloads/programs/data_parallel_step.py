"""One data-parallel training step over all devices.

Each device holds a copy of the parameters and its shard of the batch; gradients are averaged over
the devices and one step of gradient descent is taken. The network is a classifier with one hidden
tanh layer. `batch` must be a multiple of the number of devices. There is no PyTorch version,
because PyTorch uses one process per device.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, in_float64

FEATURES, CLASSES = 32, 10
LEARNING_RATE = 0.5


def make_inputs(seed: int, batch: int, width: int) -> Arrays:
    """Weights and biases of the two layers, the examples, their labels one-hot."""
    import numpy as np

    rng = np.random.default_rng(seed)
    examples = rng.standard_normal((batch, FEATURES), dtype=np.float32)
    labels = np.eye(CLASSES, dtype=np.float32)[examples[:, :CLASSES].argmax(1)]
    w1 = rng.standard_normal((FEATURES, width), dtype=np.float32) * np.float32(FEATURES**-0.5)
    w2 = rng.standard_normal((width, CLASSES), dtype=np.float32) * np.float32(width**-0.5)
    b1, b2 = np.zeros(width, np.float32), np.zeros(CLASSES, np.float32)
    return w1, b1, w2, b2, examples, labels


def _step(
    w1: Array, b1: Array, w2: Array, b2: Array, examples: Array, labels: Array
) -> tuple[Array, ...]:
    """Loss, then the parameters after the step, with hand-written backpropagation."""
    import numpy as np

    hidden = np.tanh(examples @ w1 + b1)
    scores = hidden @ w2 + b2
    scores = scores - scores.max(1, keepdims=True)
    log_chance = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    loss = -np.mean((labels * log_chance).sum(1))
    d_scores = (np.exp(log_chance) - labels) / len(examples)
    d_hidden = (d_scores @ w2.T) * (1 - hidden**2)
    gradients = (examples.T @ d_hidden, d_hidden.sum(0), hidden.T @ d_scores, d_scores.sum(0))
    params = zip((w1, b1, w2, b2), gradients, strict=True)
    return loss, *(p - LEARNING_RATE * g for p, g in params)


def build_numpy(compile: Compile, seed: int, batch: int, width: int) -> Built:
    """The whole batch on one device."""
    return compile(_step), make_inputs(seed, batch, width)


def build_jax(compile: Compile, seed: int, batch: int, width: int) -> Built:
    """`jax.shard_map` over all devices, gradients averaged by `pmean`."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere, split = PartitionSpec(), PartitionSpec("data")

    def loss_of(params: Array, examples: Array, labels: Array) -> Array:
        w1, b1, w2, b2 = params
        scores = jnp.tanh(examples @ w1 + b1) @ w2 + b2
        return -jnp.mean((labels * jax.nn.log_softmax(scores)).sum(1))

    def local_step(params: Array, examples: Array, labels: Array) -> tuple[Array, ...]:
        outcome = jax.value_and_grad(loss_of)(params, examples, labels)
        loss, gradients = jax.lax.pmean(outcome, "data")
        pairs = zip(params, gradients, strict=True)
        return loss, *(p - LEARNING_RATE * g for p, g in pairs)

    # With check_vma the gradient of replicated parameters would be summed before pmean averages it.
    specs = {"in_specs": (everywhere, split, split), "out_specs": everywhere}
    sharded = jax.shard_map(local_step, mesh=mesh, check_vma=False, **specs)

    def step(w1: Array, b1: Array, w2: Array, b2: Array, examples: Array, labels: Array) -> Array:
        return sharded((w1, b1, w2, b2), examples, labels)

    places = [NamedSharding(mesh, spec) for spec in (everywhere,) * 4 + (split,) * 2]
    inputs = zip(make_inputs(seed, batch, width), places, strict=True)
    return compile(step), tuple(jax.device_put(array, place) for array, place in inputs)


def reference(seed: int, batch: int, width: int) -> Arrays:
    """The whole batch in float64."""
    return in_float64(_step, make_inputs(seed, batch, width))
