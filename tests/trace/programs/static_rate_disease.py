"""Sweeps over learning rates, which are static arguments of the step."""

from functools import partial

import jax
import numpy as np


@partial(jax.jit, static_argnames="rate")
def step(weights, gradient, rate):
    return weights - rate * gradient


weights, gradient = np.ones((2, 8), np.float32)
for rate in (0.1, 0.03, 0.01, 0.003):
    print(rate, step(weights, gradient, rate=rate).shape)  # here
