"""Integrates a trajectory by jax.lax.fori_loop."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def trajectory(position, velocity):
    def step(_, state):
        position, velocity = state
        velocity = velocity - 0.01 * jnp.sin(position)
        return position + 0.01 * velocity, velocity

    return jax.lax.fori_loop(0, 80, step, (position, velocity))[0]


print(trajectory(*np.ones(2, np.float32)).shape)
