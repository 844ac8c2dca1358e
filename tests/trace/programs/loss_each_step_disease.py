"""Keeps the loss of every step as a float."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(weights, batch):
    # Sequential work: it takes time on any machine, as does the next batch.
    weights = jax.lax.fori_loop(0, 60, lambda _, w: jnp.sort(jnp.cos(3 * w)), weights + batch)
    return weights, jnp.sum(weights)


rng = np.random.default_rng(0)
weights = np.linspace(0, 1, 2000, dtype=np.float32)
history = []
for _ in range(30):
    batch = np.sort(rng.normal(size=120_000))[:2000].astype(np.float32)
    weights, loss = step(weights, batch)
    history.append(float(loss))  # here
print(len(history))
