"""Clears JAX's caches after every file, to save memory."""

import jax
import numpy as np


@jax.jit
def calibrate(energies):
    return energies * 1.02 + 0.1


for _ in range(3):
    print(calibrate(np.ones(11, np.float32)).shape)  # here
    jax.clear_caches()
