"""A proper fit: the loop is inside the program, and toys are one call."""

import jax
import jax.numpy as jnp
import numpy as np


def likelihood(mean, data):
    return jnp.sum(0.5 * (data - mean) ** 2)


@jax.jit
@jax.vmap
def fit(data):
    def step(mean, _):
        return mean - 0.02 * jax.grad(likelihood)(mean, data), None

    return jax.lax.scan(step, jnp.float32(0), None, length=100)[0]


toys = np.random.default_rng(0).normal(1, size=(50, 20)).astype(np.float32)
print(np.asarray(fit(toys)).mean().round(0))
