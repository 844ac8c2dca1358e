"""Integrates a trajectory with a Python loop inside jit."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def trajectory(position, velocity):
    for _ in range(80):
        velocity = velocity - 0.01 * jnp.sin(position)  # here
        position = position + 0.01 * velocity
    return position


print(trajectory(*np.ones(2, np.float32)).shape)
