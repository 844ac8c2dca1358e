"""Prints its progress now and then."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def relax(field, noise):
    # Sequential work: it takes time on any machine, as does the noise.
    return jax.lax.fori_loop(0, 150, lambda _, f: jnp.sort(jnp.cos(3 * f)), field + noise)


def run(field):
    rng = np.random.default_rng(0)
    for number in range(30):
        noise = np.sort(rng.normal(size=150_000))[:2000].astype(np.float32)
        field = relax(field, noise)
        if number % 25 == 0:
            print(number, field[0])
    return field


run(np.linspace(0, 1, 2000, dtype=np.float32)).block_until_ready()
