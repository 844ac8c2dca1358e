"""One square matrix product: the smallest program worth compiling, and the baseline."""

from __future__ import annotations

from firstlight.workloads.programs import Array, Arrays, Built, Compile, tensors


def make_inputs(seed: int, n: int) -> Arrays:
    """Two n by n matrices of standard normals, the right one scaled to keep unit variance."""
    import numpy as np

    rng = np.random.default_rng(seed)
    left = rng.standard_normal((n, n), dtype=np.float32)
    right = rng.standard_normal((n, n), dtype=np.float32) / np.float32(n**0.5)
    return left, right


def _product(left: Array, right: Array) -> Array:
    return left @ right


def build_numpy(compile: Compile, seed: int, n: int) -> Built:
    """The product with NumPy's BLAS."""
    return compile(_product), make_inputs(seed, n)


def build_jax(compile: Compile, seed: int, n: int) -> Built:
    """The product with XLA, at JAX's default precision (TF32 on some GPUs)."""
    import jax

    return compile(_product), jax.device_put(make_inputs(seed, n))


def build_torch(compile: Compile, seed: int, n: int) -> Built:
    """The product with PyTorch."""
    return compile(_product), tensors(make_inputs(seed, n))


def reference(seed: int, n: int) -> Arrays:
    """The product in float64."""
    import numpy as np

    left, right = make_inputs(seed, n)
    return (left.astype(np.float64) @ right.astype(np.float64),)
