"""Imports a package for plots where it makes one."""

import sys

import jax
import numpy as np

print(jax.jit(lambda x: x.sum())(np.ones(3, np.float32)))
if "--plot" in sys.argv:
    import plotting

    plotting.draw([1, 2, 3])
