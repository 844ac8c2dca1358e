"""Calls a function with arrays of ever new lengths, or with --pad of one length."""

import argparse
import time

import jax
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--pad", action="store_true")
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()


@jax.jit
def score(x):
    return jax.numpy.sin(x).sum()


for step in range(options.steps):
    length = 5 + step % 1000
    events = np.zeros(1024 if options.pad else length, "float32")
    events[:length] = 1.0
    float(score(events))
    time.sleep(0.05)
