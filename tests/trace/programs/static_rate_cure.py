"""Sweeps over learning rates, which are arguments like any other."""

import jax
import numpy as np


@jax.jit
def step(weights, gradient, rate):
    return weights - rate * gradient


weights, gradient = np.ones((2, 8), np.float32)
for rate in (0.1, 0.03, 0.01, 0.003):
    print(rate, step(weights, gradient, rate=rate).shape)
