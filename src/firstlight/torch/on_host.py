"""The first steps of a training in NumPy, without importing JAX or compiling anything.

The results have the form of those of the compiled programs (see `programs`), so a training can
switch to these at any step and stay in the same minimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from firstlight.histfactory.array_types import ArrayLike
from firstlight.histfactory.model import Model
from firstlight.histfactory.newton import WarmStart
from firstlight.histfactory.programs import Patience
from firstlight.losses.first_gradients import statistic
from firstlight.torch import programs

Floats = NDArray[np.float64]
#: A step takes 18 evaluations; its program takes three times as long to compile as that of a fit.
_PATIENCE = Patience(evaluations=18, compiling=3)


def is_over(model: Model, device: torch.device, rows: int | None) -> bool:
    """Whether to run compiled."""
    if device.type != "cpu" and not (device.type == "cuda" and _gpu_of_jax()):
        return True  # so that JAX reports at the first step what is wrong with this device
    return _PATIENCE.is_over(model.about, rows or 1)


def end(model: Model) -> None:
    """Note that programs are compiled."""
    _PATIENCE.end(model.about)


@cache
def _gpu_of_jax() -> bool:
    """Whether JAX can probably use a GPU; finding out for certain would take seconds."""
    return find_spec("jax_plugins") is not None


def to_host(tensor: torch.Tensor) -> Floats:
    """The values of a tensor in float64."""
    values: Floats = tensor.detach().double().cpu().numpy()
    return values


def packed(
    spec: programs.Statistic,
    model: Model,
    data: ArrayLike | None,
    request: Floats,
    near: Floats,
    values: Sequence[Floats],
) -> tuple[Floats, Floats]:
    """The result of `programs.statistic`, or of `programs.batch` if all arguments have rows."""
    if request.ndim > 1:
        rows = zip(request, near, *values, strict=True)
        each = [packed(spec, model, data, row, start, given) for row, start, *given in rows]
        return np.stack([result for result, _ in each]), np.stack([end for _, end in each])
    mu, rooted, eps, sign, nearby = map(float, request)
    size = sum(np.size(v) for v in values)
    if invalid := float(programs.invalid(spec, values, np)):
        return np.array([math.nan, 0, 0, 0, invalid, *np.zeros(size)]), np.zeros_like(near)
    free, conditional, known = np.split(near, [(len(near) - 1) // 2, len(near) - 1])
    found = statistic(
        model,
        spec.keys,
        tuple(values),
        _PATIENCE,
        objective=spec.objective,
        mu=mu if spec.tests_mu else None,
        test_statistic="qtilde" if spec.tests_mu else "q0",
        warm_start=WarmStart(free, conditional, known[0] * nearby),
        data=data,
        fixed=dict(spec.fixed),
        variations=spec.variations,
    )
    root = math.sqrt(found.q + eps) if rooted else 1.0
    value, slope = (root, 0.5 / root) if rooted else (found.q, 1.0)
    state: Any = found.state
    header = [sign * value, state.status_code[0], state.status_code[-1], state.iterations, 0.0]
    gradient = np.concatenate([np.ravel(g) for g in found.gradient])
    after = state.warm_start
    ends = np.concatenate([after.free, after.conditional, [float(after.known)]])
    return np.concatenate([header, sign * slope * gradient]), ends
