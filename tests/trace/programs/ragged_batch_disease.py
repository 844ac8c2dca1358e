"""Trains on batches from a loader whose last batch is smaller than the others."""

import jax
import jax.numpy as jnp
import numpy as np


def batches(data, size):
    for start in range(0, len(data), size):
        yield data[start : start + size]


@jax.jit
def train_step(weights, batch):
    def loss(weights):
        return jnp.mean((batch @ weights) ** 2)

    return weights - 0.1 * jax.grad(loss)(weights)


weights = np.ones(8, np.float32)
data = np.random.default_rng(0).normal(size=(250, 8)).astype(np.float32)
for batch in batches(data, 100):
    weights = train_step(weights, batch)  # here
print(weights.shape)
