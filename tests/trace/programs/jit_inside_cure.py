"""Fits several toys: the step is jitted once, and the data are an argument of it."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def step(mean, data):
    return mean - 0.5 * jax.grad(lambda m: jnp.mean((data - m) ** 2))(mean)


def fit(data):
    mean = np.float32(0)
    for _ in range(5):
        mean = step(mean, data)
    return mean


for toy in range(3):
    print(toy, fit(np.full(10, toy, np.float32)).shape)
