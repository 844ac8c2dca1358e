"""A momentum that is an array of one type from the start."""

import jax
import numpy as np


@jax.jit
def update(velocity, gradient):
    return np.float32(0.9) * velocity + gradient.sum()


gradient = np.ones(6, np.float32)
velocity = np.float32(0.0)
for _ in range(3):
    velocity = update(velocity, gradient)
print(velocity.shape)
