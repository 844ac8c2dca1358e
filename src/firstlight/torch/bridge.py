"""Tensors to JAX and back, without a copy, on the device where they are.

On a GPU DLPack orders the work of both frameworks on their streams: what JAX reads waits for what
PyTorch has queued, and the reverse. The host waits for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.utils.dlpack import to_dlpack

from firstlight.histfactory.precision import float64_scope
from firstlight.losses.binning import LossError

#: Bytes. XLA's kernels for a GPU refuse an argument that begins elsewhere.
ALIGNMENT = 16


def to_jax(tensor: torch.Tensor) -> Any:
    """The values of a tensor in float64 for a program of JAX, on the same device."""
    plain = tensor.detach()
    if plain.dtype != torch.float64:
        plain = plain.double()
    plain = plain.contiguous()
    if plain.device.type == "cpu":
        # Shares memory as well, and a program takes it a hundred microseconds sooner.
        return plain.numpy()
    if plain.data_ptr() % ALIGNMENT:  # a part of another tensor
        plain = plain.clone()
    with float64_scope():
        return jax.dlpack.from_dlpack(plain if torch.version.hip else _Export(plain))


class Inlet:
    """Memory on a GPU through which tensors reach JAX, at the same addresses every time.

    Only for programs whose end the host waits for: then nobody reads any more when the next tensors
    come in.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        # Kept, and so also used outside of the inference that may be going on.
        with torch.inference_mode(False):
            self._memory = [
                torch.empty(t.shape, dtype=torch.float64, device=t.device) for t in tensors
            ]

    def take_in(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The values in float64 for a program of JAX."""
        for own, given in zip(self._memory, tensors, strict=True):
            own.copy_(given.detach())
        return tuple(to_jax(own) for own in self._memory)


def to_torch(array: Any) -> torch.Tensor:
    """A tensor over the memory of an array of JAX. Not to be written to."""
    return torch.from_dlpack(array)


class _Export:
    """DLPack's protocol for a plain CUDA tensor, without the questions that are answered here.

    `torch.Tensor` has it too, and takes a third of the time of a small likelihood for it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.tensor.device.index

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        device = self.tensor.device
        reader = _stream(stream, device.index)
        writer = torch.cuda.current_stream(device)
        if reader != writer:
            reader.wait_event(writer.record_event())
            # Its memory is not to be given away before the reader is done with it.
            self.tensor.record_stream(reader)
        return to_dlpack(self.tensor)


_CUDA = 2  # kDLCUDA
_STREAMS: dict[tuple[int | None, int], Any] = {}


def _stream(pointer: int | None, index: int) -> Any:
    """A stream of JAX as one of PyTorch; None and 1 are the default one."""
    if (pointer, index) not in _STREAMS:
        default = pointer is None or pointer == 1
        _STREAMS[pointer, index] = (
            torch.cuda.default_stream(index)
            if default
            else torch.cuda.ExternalStream(pointer, device=index)
        )
    return _STREAMS[pointer, index]


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
    if isinstance(x, np.ndarray):
        # PyTorch has no negative strides, and would not survive being given some.
        return torch.from_numpy(x if all(s >= 0 for s in x.strides) else x.copy())
    if hasattr(x, "__dlpack__"):
        return torch.from_dlpack(x)
    return torch.as_tensor(x)
