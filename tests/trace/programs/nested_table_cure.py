"""Adds corrections from a table that is an argument."""

import jax
import numpy as np

table = np.random.default_rng(0).normal(size=(600, 600)).astype(np.float32)


@jax.jit
def correction(table, i):
    return table[i].sum()


@jax.jit
def corrected(table, x, i):
    return x + correction(table, i)


print(corrected(table, np.float32(3), np.int32(4)).shape)
