"""Evaluates a network with its parameters bound by functools.partial, in every epoch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


def accuracy(weights, x, y):
    return jnp.mean((x @ weights > 0) == y)


x, y = np.ones((20, 4), np.float32), np.ones(20, bool)
for epoch in range(3):
    weights = np.full(4, epoch, np.float32)
    evaluate = jax.jit(partial(accuracy, weights))
    print(epoch, evaluate(x, y).shape)  # here
