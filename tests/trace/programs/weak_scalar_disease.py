"""A momentum that starts as a Python number and comes back as an array."""

import jax
import numpy as np


@jax.jit
def update(velocity, gradient):
    return np.float32(0.9) * velocity + gradient.sum()


gradient = np.ones(6, np.float32)
velocity = 0.0
for _ in range(3):
    velocity = update(velocity, gradient)  # here
print(velocity.shape)
