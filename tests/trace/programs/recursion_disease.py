"""A recurrence written as a function that calls itself, within jit."""

import jax
import jax.numpy as jnp
import numpy as np


def legendre(n, x, last, before):
    if n == 0:
        return before
    higher = 1.9 * x * last - 0.9 * jnp.cos(before) + 0.1 * last  # here
    return legendre(n - 1, x, higher, last)


@jax.jit
def series(x):
    return legendre(50, x, x, jnp.ones_like(x))


print(series(np.ones(3, np.float32)).shape)
