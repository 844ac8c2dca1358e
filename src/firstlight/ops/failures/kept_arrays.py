"""Keeps the results of all steps, or only the last --keep ones."""

import argparse
import time
from collections import deque

import jax
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--keep", type=int)
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()


@jax.jit
def features(x):
    return x * 2.0


history: deque[jax.Array] = deque(maxlen=options.keep)
for step in range(options.steps):
    result = features(np.full(50_000, step, "float32"))  # 0.2 MB
    history.append(result)
    result.block_until_ready()
    time.sleep(0.1)
