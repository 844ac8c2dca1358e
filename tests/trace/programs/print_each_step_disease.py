"""Prints how far it is in every step."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def relax(field):
    # One after the other: that takes its time on any machine.
    return jax.lax.fori_loop(0, 60, lambda _, f: jnp.sort(jnp.cos(3 * f)), field)


def run(field):
    for number in range(50):
        field = relax(field)
        print(number, field[0])  # here
    return field


run(np.linspace(0, 1, 2000, dtype=np.float32)).block_until_ready()
