"""One training step of a model that is partitioned over all devices.

Each device holds a part of the hidden units of every residual block, with their weights and biases,
and the whole batch: blocks are summed over the devices, and no device ever has all parameters. The
network is a regression; one step of gradient descent is taken. `hidden` must be a multiple of the
number of devices. There is no PyTorch version, because PyTorch uses one process per device.
"""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, in_float64

BLOCKS = 3
LEARNING_RATE = 0.1


def make_inputs(seed: int, batch: int, width: int, hidden: int) -> Arrays:
    """Weights into the hidden units, their biases, weights out of them; examples and targets."""
    import numpy as np

    rng = np.random.default_rng(seed)
    into = rng.standard_normal((BLOCKS, width, hidden), dtype=np.float32)
    out = rng.standard_normal((BLOCKS, hidden, width), dtype=np.float32)
    examples = rng.standard_normal((batch, width), dtype=np.float32)
    bias = np.zeros((BLOCKS, hidden), np.float32)
    scales = np.float32(width**-0.5), np.float32(hidden**-0.5)
    return into * scales[0], bias, out * scales[1], examples, np.sin(examples)


def _step(into: Array, bias: Array, out: Array, examples: Array, targets: Array) -> Arrays:
    """Loss, then the parameters after the step, with hand-written backpropagation."""
    import numpy as np

    states, units = [examples], []
    for w, b, v in zip(into, bias, out, strict=True):
        units.append(np.tanh(states[-1] @ w + b))
        states.append(states[-1] + units[-1] @ v)
    error = states[-1] - targets
    slope = 2 * error / error.size
    taken = []
    for k in reversed(range(BLOCKS)):
        d_units = (slope @ out[k].T) * (1 - units[k] ** 2)
        taken.append((states[k].T @ d_units, d_units.sum(0), units[k].T @ slope))
        slope = slope + d_units @ into[k].T
    gradients = (np.stack(g) for g in zip(*reversed(taken), strict=True))
    params = zip((into, bias, out), gradients, strict=True)
    return np.mean(error**2), *(p - LEARNING_RATE * g for p, g in params)


def build_numpy(compile: Compile, seed: int, batch: int, width: int, hidden: int) -> Built:
    """The whole model on one device."""
    return compile(_step), make_inputs(seed, batch, width, hidden)


def build_jax(compile: Compile, seed: int, batch: int, width: int, hidden: int) -> Built:
    """Partitioned arguments; XLA divides the program and puts the sums over devices into it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("model",))
    by_unit = [
        PartitionSpec(None, None, "model"),
        PartitionSpec(None, "model"),
        PartitionSpec(None, "model", None),
    ]
    divided = [NamedSharding(mesh, spec) for spec in by_unit]
    everywhere = NamedSharding(mesh, PartitionSpec())

    def loss_of(params: Array, examples: Array, targets: Array) -> Array:
        state = examples
        for w, b, v in zip(*params, strict=True):
            state = state + jnp.tanh(state @ w + b) @ v
        return jnp.mean((state - targets) ** 2)

    def step(into: Array, bias: Array, out: Array, examples: Array, targets: Array) -> Arrays:
        params = (into, bias, out)
        loss, gradients = jax.value_and_grad(loss_of)(params, examples, targets)
        after = (p - LEARNING_RATE * g for p, g in zip(params, gradients, strict=True))
        # The next step finds them where this one did, so it is the same program.
        placed = zip(after, divided, strict=True)
        return loss, *(jax.lax.with_sharding_constraint(p, place) for p, place in placed)

    places = [*divided, everywhere, everywhere]
    inputs = zip(make_inputs(seed, batch, width, hidden), places, strict=True)
    return compile(step), tuple(jax.device_put(array, place) for array, place in inputs)


def reference(seed: int, batch: int, width: int, hidden: int) -> Arrays:
    """The whole model in float64."""
    return in_float64(_step, make_inputs(seed, batch, width, hidden))
