"""Draws the weights of a network layer by layer, outside jit."""

from itertools import pairwise

import jax
import jax.numpy as jnp

SIZES = (3, 7, 5, 2)


def initialise(seed):
    key = jax.random.key(seed)
    layers = []
    for fan_in, fan_out in pairwise(SIZES):
        key, one = jax.random.split(key)
        kernel = jax.random.normal(one, (fan_in, fan_out)) / jnp.sqrt(fan_in)  # here
        layers.append((kernel, jnp.zeros(fan_out)))
    return layers


print(len(initialise(0)))
