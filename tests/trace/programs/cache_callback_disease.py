"""With a persistent cache: a step that prints from inside."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@jax.jit  # here
def step(x):
    total = jnp.sum(x)
    jax.debug.print("total {total}", total=total)
    return x / total


print(step(np.ones(5, np.float32)))
