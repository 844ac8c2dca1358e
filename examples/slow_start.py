"""A fit that starts slowly, for common reasons that the trace finds.

firstlight trace examples/slow_start.py
"""

import jax
import jax.numpy as jnp
import numpy as np

STEPS = 60
RATE = 5e-3


@jax.jit
def fit(slope, x, y):
    for _ in range(STEPS):  # a Python loop: every iteration becomes part of the program
        slope = slope - RATE * jnp.sum((slope * x - y) * x)
    return slope


generator = np.random.default_rng(1)
slope = 0.0
for batch in (30, 40, 50):  # each size compiles another program
    x = generator.normal(size=batch)
    slope = fit(slope, x, 3 * x)
print(f"slope: {slope:.3f}")

for power in (1, 2, 3):
    moment = jax.jit(lambda x: jnp.mean(x**power))  # noqa: B023 - a new function to JAX every time
    print(f"moment {power}: {moment(x):.3f}")
