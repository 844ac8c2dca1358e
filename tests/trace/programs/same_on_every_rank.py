"""The program of every process of a job; a folder for a cache may be given."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

if len(sys.argv) > 1:
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@jax.jit  # here
def loss(x):
    return jnp.sum(jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(3)))


print(loss(np.ones((3, 3), np.float32)))
