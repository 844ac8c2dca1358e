"""A program that imports JAX and does not use it."""

import jax

print(jax.__name__)
