"""64 bits are switched on when an analysis gets to its precise part."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def log_sum(x):
    return jax.scipy.special.logsumexp(jnp.cos(x))


x = np.ones(9, np.float32)
for wide in (False, True):
    jax.config.update("jax_enable_x64", wide)
    print(log_sum(x).shape)  # here
