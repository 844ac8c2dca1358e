"""With 64 bits on: data of any precision are converted to double first."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


@jax.jit
def spectrum(samples):
    return jnp.sort(samples)[::2] ** 2


for dtype in (np.float64, np.float32):
    samples = np.linspace(0, 1, 30, dtype=dtype)
    print(spectrum(np.asarray(samples, dtype=np.float64)).shape)
