"""A proper training loop: one compile, and a look at the loss now and then."""

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def train_step(weights, x, y):
    def loss(weights):
        return jnp.mean((x @ weights - y) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradient, value


random = np.random.default_rng(0)
weights = np.zeros(5, np.float32)
for number in range(200):
    x = random.normal(size=(32, 5)).astype(np.float32)
    weights, value = train_step(weights, x, x.sum(axis=1))
    if number % 100 == 0:
        print(number, float(value))
print(np.asarray(weights).round(1))
