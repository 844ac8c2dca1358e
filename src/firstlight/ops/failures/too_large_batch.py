"""Requests more memory than the device has, unless --batch is small."""

import argparse
import time

import jax
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2**46)
parser.add_argument("--steps", type=int, default=1_000_000)
options = parser.parse_args()


@jax.jit
def embed(x):
    return jax.numpy.broadcast_to(x, (options.batch, 64)) * 2.0


for _ in range(options.steps):
    try:
        embed(np.ones(64, "float32")).block_until_ready()
    except Exception as error:
        print(f"{type(error).__name__}: {str(error)[:200]}", flush=True)
    time.sleep(0.2)
