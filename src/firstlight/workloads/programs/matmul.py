"""One square matrix product: the smallest program worth compiling, and the baseline."""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    Step = Callable[..., Any]
    Built = tuple[Step, tuple[Any, ...]]


def make_inputs(seed: int, n: int) -> tuple[NDArray[Any], ...]:
    """Two n by n matrices of standard normals, the right one scaled to keep unit variance."""
    import numpy as np

    rng = np.random.default_rng(seed)
    left = rng.standard_normal((n, n), dtype=np.float32)
    right = rng.standard_normal((n, n), dtype=np.float32) / np.float32(n**0.5)
    return left, right


def build_numpy(compile: Callable[[Step], Step], seed: int, n: int) -> Built:
    """The product with NumPy's BLAS."""

    def step(left: Any, right: Any) -> Any:
        return left @ right

    return compile(step), make_inputs(seed, n)


def build_jax(compile: Callable[[Step], Step], seed: int, n: int) -> Built:
    """The product with XLA, at JAX's default precision (TF32 on some GPUs)."""
    import jax

    def step(left: Any, right: Any) -> Any:
        return left @ right

    return compile(step), jax.device_put(make_inputs(seed, n))


def build_torch(compile: Callable[[Step], Step], seed: int, n: int) -> Built:
    """The product with PyTorch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def step(left: Any, right: Any) -> Any:
        return left @ right

    return compile(step), tuple(torch.from_numpy(a).to(device) for a in make_inputs(seed, n))


def reference(seed: int, n: int) -> tuple[NDArray[Any], ...]:
    """The product in float64."""
    import numpy as np

    left, right = make_inputs(seed, n)
    return (left.astype(np.float64) @ right.astype(np.float64),)
