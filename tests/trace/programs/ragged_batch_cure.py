"""Trains on batches that are all of one size: the last is padded, and a mask leaves that out."""

import jax
import jax.numpy as jnp
import numpy as np


def batches(data, size):
    for start in range(0, len(data), size):
        batch = data[start : start + size]
        missing = size - len(batch)
        mask = np.arange(size) < len(batch)
        yield np.pad(batch, ((0, missing), (0, 0))), mask.astype(np.float32)


@jax.jit
def train_step(weights, batch, mask):
    def loss(weights):
        return jnp.sum(mask * (batch @ weights) ** 2) / jnp.sum(mask)

    return weights - 0.1 * jax.grad(loss)(weights)


weights = np.ones(8, np.float32)
data = np.random.default_rng(0).normal(size=(250, 8)).astype(np.float32)
for batch, mask in batches(data, 100):
    weights = train_step(weights, batch, mask)
print(weights.shape)
