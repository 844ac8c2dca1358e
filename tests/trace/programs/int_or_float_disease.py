"""Scans a signal strength, some values of which are written as whole numbers."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def likelihood(strength, signal, background):
    expected = strength * signal + background
    return jnp.sum(expected - jnp.log(expected))


signal, background = np.ones((2, 7), np.float32)
for strength in (0, 0.5, 1, 1.5):
    print(likelihood(strength, signal, background).shape)  # here
