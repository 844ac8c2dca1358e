"""A recurrent filter whose gradient is taken through a Python loop over time."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def gradient(weight, inputs):
    def loss(weight):
        state = 0.0
        for x in inputs:
            state = jnp.tanh(weight * state + x)  # here
        return state

    return jax.grad(loss)(weight)


print(gradient(np.float32(0.5), np.ones(40, np.float32)).shape)
