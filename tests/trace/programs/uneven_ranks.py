"""A rank of a job whose shards have different sizes."""

import os

import jax
import jax.numpy as jnp
import numpy as np

RANK = int(os.environ["RANK"])


@jax.jit
def loss(x):
    return jnp.sum(jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(len(x))))


print(loss(np.ones((3 + RANK, 3), np.float32)))  # here
