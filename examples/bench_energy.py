"""A custom benchmark: the same sum in JAX and NumPy, at two sizes.

firstlight run examples/bench_energy.py
firstlight run examples/bench_energy.py --cache none --cache warm
"""

import numpy as np

from firstlight import bench

SIZES = {"small": {"n": 1_000}, "large": {"n": 1_000_000}}


def exact(n: int) -> np.ndarray:
    return np.sum(np.sin(np.linspace(0, 1, n)) ** 2)


@bench(workload="energy", backend="jax-jit", sizes=SIZES, reference=exact, tolerance=1e-5)
def energy_jax(n: int):
    # Imported here: at the top of the file, the NumPy case would pay for it too.
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x: jnp.sum(jnp.sin(x) ** 2))
    return step, (jax.device_put(np.linspace(0, 1, n, dtype=np.float32)),)


@bench(workload="energy", backend="numpy", sizes=SIZES, reference=exact, tolerance=1e-5)
def energy_numpy(n: int):
    return (lambda x: np.sum(np.sin(x) ** 2)), (np.linspace(0, 1, n, dtype=np.float32),)
