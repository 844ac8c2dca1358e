"""Passes tensors to JAX and back, without a copy, on the device that holds them.

On a GPU, DLPack orders the work of both frameworks on their streams: JAX waits for what PyTorch has
queued before it reads, and vice versa. The host waits for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch.utils.dlpack import to_dlpack

from firstlight.histfactory.array_types import Array, ArrayLike
from firstlight.histfactory.lazy_jax import jax
from firstlight.histfactory.precision import float64_scope
from firstlight.losses.binning import LossError

#: Bytes. XLA's GPU kernels reject arguments with another alignment.
ALIGNMENT = 16


def to_jax(tensor: torch.Tensor) -> Array:
    """The values of a tensor in float64 for a JAX program, on the same device."""
    plain = tensor.detach().double().contiguous()  # no copies where nothing changes
    if plain.device.type == "cpu":
        # This also shares memory, and passing it to a program is 0.1 ms faster.
        return plain.numpy()
    if plain.data_ptr() % ALIGNMENT:  # a slice of another tensor
        plain = plain.clone()
    with float64_scope():
        return jax.dlpack.from_dlpack(plain if torch.version.hip else _Export(plain))


class FixedAddressInputs:
    """GPU memory that passes tensors to JAX at the same addresses every time.

    Only for programs that the host waits for: the memory must no longer be in use when the next
    tensors are copied in.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        # Kept beyond this call, so it must not be an inference tensor.
        with torch.inference_mode(False):
            self._memory = [
                torch.empty(t.shape, dtype=torch.float64, device=t.device) for t in tensors
            ]

    def copy_in(self, tensors: Sequence[torch.Tensor]) -> tuple[Array, ...]:
        """The values in float64 for a JAX program."""
        for own, given in zip(self._memory, tensors, strict=True):
            own.copy_(given.detach())
        return tuple(to_jax(own) for own in self._memory)


def to_torch(array: jax.Array) -> torch.Tensor:
    """A tensor that shares the memory of a JAX array. Do not write to it."""
    return torch.from_dlpack(array)


class _Export:
    """The DLPack protocol for a plain CUDA tensor, without checks that are not needed here.

    The protocol of `torch.Tensor` itself takes a third of the time of a small likelihood.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.tensor.device.index

    def __dlpack__(self, *, stream: int | None = None) -> object:
        device = self.tensor.device
        reader = _stream(stream, device.index)
        writer = torch.cuda.current_stream(device)
        if reader != writer:
            reader.wait_event(writer.record_event())
            # The memory must not be reused before the reader is done with it.
            self.tensor.record_stream(reader)
        return to_dlpack(self.tensor)


_CUDA = 2  # kDLCUDA


@cache
def _stream(pointer: int | None, index: int) -> torch.cuda.Stream:
    """A JAX stream as a PyTorch stream; None and 1 are the default stream."""
    if pointer is None or pointer == 1:
        return torch.cuda.default_stream(index)
    return torch.cuda.ExternalStream(pointer, device=index)


def jax_device(device: torch.device) -> jax.Device:
    """The JAX device that corresponds to a PyTorch device."""
    if device.type == "cpu":
        return jax.devices("cpu")[0]
    if device.type != "cuda":
        raise LossError(
            f"the tensors are on {device}; the likelihood runs on cpu or cuda. Move them: .cpu()."
        )
    try:
        devices = jax.devices("cuda")
    except RuntimeError:
        raise LossError(
            f"the tensors are on {device}, but JAX finds no GPU. Install JAX for CUDA "
            "(pip install 'jax[cuda13]' or 'jax[cuda12]'), or move the histogram: .cpu()."
        ) from None
    return devices[device.index or 0]


def as_tensor(x: torch.Tensor | ArrayLike) -> torch.Tensor:
    """A tensor from a tensor (returned unchanged), an array (not copied if possible) or a list."""
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, np.ndarray):
        # PyTorch does not support negative strides.
        return torch.from_numpy(x if all(s >= 0 for s in x.strides) else x.copy())
    if hasattr(x, "__dlpack__"):
        return torch.from_dlpack(x)
    return torch.as_tensor(x)
