"""Uses a cache, as the second process of jax.distributed or, without an address, alone."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

folder, rank, *address = sys.argv[1:]
jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
if address:
    jax.distributed.initialize(
        address[0], num_processes=2, process_id=int(rank), initialization_timeout=60
    )
jax.local_devices()  # where all processes meet


@jax.jit  # here
def summary(x):
    return jnp.sin(x) + jnp.cos(x) ** 2


if rank == "1":
    print(summary(np.ones(20, np.float32)).shape)
