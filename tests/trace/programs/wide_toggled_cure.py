"""64 bits are on from the start."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


@jax.jit
def log_sum(x):
    return jax.scipy.special.logsumexp(jnp.cos(x))


x = np.ones(9, np.float32)
for _ in range(2):
    print(log_sum(x).shape)
