"""A function that takes long to compile: without a cache, or with the one that is given."""

import sys

import jax
import numpy as np

if len(sys.argv) > 1:
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@jax.jit  # here
def draws(seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    return [jax.random.normal(key, (size,)) for key, size in zip(keys, (3, 4), strict=True)]


print(len(draws(np.int32(0))))
