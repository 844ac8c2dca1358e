"""Trains for a while; the size of the evaluation has been compiled before."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def predict(x):
    return jnp.tanh(x @ x.T).sum()


predict(np.ones((70, 4), np.float32)).block_until_ready()
for _ in range(200):
    predict(np.ones((96, 4), np.float32)).block_until_ready()
print(predict(np.ones((70, 4), np.float32)))
