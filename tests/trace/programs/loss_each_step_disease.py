"""Keeps the loss of every step as a float."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(weights):
    weights = jnp.tanh(weights @ weights)
    return weights, jnp.sum(weights)


weights = np.full((400, 400), 0.01, np.float32)
history = []
for _ in range(60):
    weights, loss = step(weights)
    history.append(float(loss))  # here
print(len(history))
