"""Scans a parameter: a new lambda is jitted for every value of it."""

import jax
import jax.numpy as jnp
import numpy as np

data = np.linspace(0, 1, 50, dtype=np.float32)
for mass in (90.0, 91.0, 92.0):
    chi2 = jax.jit(lambda x: jnp.sum((x - mass) ** 2))  # noqa: B023
    print(mass, chi2(data).shape)  # here
