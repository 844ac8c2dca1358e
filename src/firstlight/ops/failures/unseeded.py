"""A canary: the same batch in every step, with a random key from the clock or from --seed."""

import argparse
import time

import jax
import numpy as np

from firstlight.telemetry import watch_outputs

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()


@jax.jit
def noisy(x, key):
    return x + jax.random.normal(key, x.shape)


def predict(x):
    seed = time.monotonic_ns() % 2**31 if options.seed is None else options.seed
    return noisy(x, jax.random.key(seed))


canary = watch_outputs(predict, name="predict")
for _ in range(options.steps):
    canary(np.ones(16, "float32"))
    time.sleep(0.1)
