"""Proper serving: two sizes to pad to, compiled before the first request."""

import jax
import numpy as np


@jax.jit
def predict(weights, x):
    return jax.nn.softmax(x @ weights)


weights = np.eye(4, dtype=np.float32)
for size in (8, 16):
    predict(weights, np.zeros((size, 4), np.float32)).block_until_ready()
for requests in (3, 8, 12, 5):
    size = 8 if requests <= 8 else 16
    batch = np.zeros((size, 4), np.float32)
    print(np.asarray(predict(weights, batch))[:requests].shape)
