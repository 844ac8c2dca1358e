"""An optimiser in the style of optax, whose update is one program."""

import jax
import jax.numpy as jnp
import numpy as np

parameters = {"a": np.ones(13, np.float32), "b": np.ones((2, 13), np.float32)}
gradients = jax.tree.map(np.ones_like, parameters)
moments = jax.tree.map(np.zeros_like, parameters)


@jax.jit
def adam(parameters, gradients, moments):
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * jnp.square(g), moments, gradients)
    scaled = jax.tree.map(lambda g, m: g / (jnp.sqrt(m) + 1e-8), gradients, moments)
    return jax.tree.map(lambda p, s: p - 0.01 * s, parameters, scaled), moments


for _ in range(2):
    parameters, moments = adam(parameters, gradients, moments)
print(parameters["a"].shape)
