"""Computes without errors on the platform that JAX has found."""

import argparse
import time

import jax
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()


@jax.jit
def score(x):
    return jax.numpy.sin(x).sum()


for _ in range(options.steps):
    float(score(np.ones(64, "float32")))
    time.sleep(0.2)
