"""Tensors to JAX and back, without a copy, on the device where they are.

On a GPU DLPack orders the work of both frameworks on their streams: what JAX reads waits for what
PyTorch has queued, and the reverse. The host waits for neither.
"""

from __future__ import annotations

from typing import Any

import jax
import torch

from firstlight.histfactory.precision import float64_scope
from firstlight.losses.binning import LossError


def to_jax(tensor: torch.Tensor) -> Any:
    """The values of a tensor in float64 for a program of JAX, on the same device."""
    plain = tensor.detach().to(torch.float64).contiguous()
    if plain.device.type == "cpu":
        # Shares memory as well, and a program takes it a hundred microseconds sooner.
        return plain.numpy()
    with float64_scope():
        return jax.dlpack.from_dlpack(plain)


def to_torch(array: Any) -> torch.Tensor:
    """A tensor over the memory of an array of JAX. Not to be written to."""
    return torch.from_dlpack(array)


def jax_device(device: torch.device) -> Any:
    """The device of JAX that is this one of PyTorch."""
    if device.type == "cpu":
        return jax.devices("cpu")[0]
    if device.type != "cuda":
        raise LossError(
            f"the tensors are on {device}; the likelihood runs on cpu and cuda. Move them: .cpu()."
        )
    try:
        devices = jax.devices("cuda")
    except RuntimeError:
        raise LossError(
            f"the tensors are on {device}, but JAX sees no GPU here. Install it for CUDA "
            "(pip install 'jax[cuda13]' or 'jax[cuda12]'), or move the histogram: .cpu()."
        ) from None
    return devices[device.index or 0]


def as_tensor(x: Any) -> torch.Tensor:
    """A tensor of anything: tensors as they are, arrays with DLPack without a copy, lists."""
    if isinstance(x, torch.Tensor):
        return x
    if hasattr(x, "__dlpack__"):
        return torch.from_dlpack(x)
    return torch.as_tensor(x)
