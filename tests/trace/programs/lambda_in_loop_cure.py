"""Scans a parameter, which is an argument of one jitted function."""

import jax
import jax.numpy as jnp
import numpy as np

data = np.linspace(0, 1, 50, dtype=np.float32)
chi2 = jax.jit(lambda x, mass: jnp.sum((x - mass) ** 2))
for mass in (90.0, 91.0, 92.0):
    print(mass, chi2(data, mass).shape)
