"""Looks efficiencies up in a table that is an argument."""

import jax
import numpy as np

table = np.random.default_rng(0).normal(size=(600, 600)).astype(np.float32)


@jax.jit
def efficiency(table, i, j):
    return table[i, j]


print(efficiency(table, np.int32(3), np.int32(4)).shape)
