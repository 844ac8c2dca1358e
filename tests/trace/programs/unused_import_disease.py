"""Imports a package for plots at the top, and makes no plot unless asked to."""

import sys

import jax
import numpy as np
import plotting  # here

print(jax.jit(lambda x: x.sum())(np.ones(3, np.float32)))
if "--plot" in sys.argv:
    plotting.draw([1, 2, 3])
