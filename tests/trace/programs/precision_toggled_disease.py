"""Only every other product is asked for in full precision."""

import jax
import numpy as np


@jax.jit
def gram(x):
    return x.T @ x


x = np.ones((6, 3), np.float32)
for precision in ("default", "highest", "default"):
    with jax.default_matmul_precision(precision):
        print(gram(x).shape)  # here
