"""Keeps the loss of every step as a float."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(weights):
    # One after the other: that takes its time on any machine.
    weights = jax.lax.fori_loop(0, 60, lambda _, w: jnp.sort(jnp.cos(3 * w)), weights)
    return weights, jnp.sum(weights)


weights = np.linspace(0, 1, 2000, dtype=np.float32)
history = []
for _ in range(60):
    weights, loss = step(weights)
    history.append(float(loss))  # here
print(len(history))
