"""The measured programs: one module per workload, with a builder for each framework.

A builder takes the transform to apply to the function under test (`compile`), the seed and the
parameters of a size. It returns a step and its arguments, already on their device.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from typing: imports are timed, so nothing may be imported here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    from numpy.typing import NDArray

    Array: TypeAlias = Any  # an array, a number or a tree of them, of the framework at hand
    Arrays = tuple[NDArray[Any], ...]
    Step = Callable[..., Array]
    Compile = Callable[[Step], Step]
    Built = tuple[Step, tuple[Array, ...]]
else:  # annotations are not evaluated, so any value will do
    Array = Arrays = Step = Compile = Built = None


def tensors(arrays: Iterable[Array]) -> tuple[Array, ...]:
    """Arrays as tensors, on the GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return tuple(torch.from_numpy(a).to(device) for a in arrays)


def in_float64(function: Step, arrays: Iterable[Array]) -> Arrays:
    """The results of a step in NumPy, computed in float64."""
    import numpy as np

    outputs = function(*(a.astype(np.float64) for a in arrays))
    return tuple(np.asarray(out) for out in outputs)
