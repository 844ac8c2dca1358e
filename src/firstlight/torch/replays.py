"""Runs small PyTorch computations in one launch each: on a GPU the number of launches dominates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import torch

Tensors = tuple[torch.Tensor | None, ...]
Results: TypeAlias = Any  # a tensor, or a tuple of tensors
#: Recordings kept at a time. A training has two or three shapes: full batches and the last one.
MAX_RECORDINGS = 8


class Replays:
    """Runs functions of tensors; repeated calls on a GPU are recorded, then replayed.

    A function must be pure, return a tensor or a tuple of tensors, never make the host wait, and be
    called without autograd. Its first call runs it directly, the second with tensors of the same
    shapes records it as a CUDA graph, and each later call copies its arguments in, launches once,
    and copies the results out.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, _Recording | None] = {}
        self._lock = threading.Lock()

    def run(self, function: Callable[..., Results], *tensors: torch.Tensor | None) -> Results:
        """`function(*tensors)`; None among the arguments stays None."""
        if not _can_be_recorded(tensors):
            return function(*tensors)
        # Calls on two streams may overlap, so each needs its own memory.
        device = next(t.device for t in tensors if t is not None)
        forms = (None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
        key = (function, torch.cuda.current_stream(device).cuda_stream, *forms)
        # Each recording has a single set of buffers, so calls must not overlap.
        with self._lock:
            if key not in self._seen:
                while len(self._seen) >= MAX_RECORDINGS:
                    self._seen.pop(next(iter(self._seen)))
                self._seen[key] = None
                return function(*tensors)
            recording = self._seen[key]
            if recording is None:
                recording = self._seen[key] = _Recording(function, tensors)
            return recording.replay(tensors)

    def __reduce__(self) -> tuple[type[Replays], tuple[()]]:
        return Replays, ()  # recordings are bound to a process and its memory


class _Recording:
    """A function recorded for tensors of given shapes, with the memory it works on."""

    def __init__(self, function: Callable[..., Results], examples: Tensors) -> None:
        # Kept beyond this call, so these must not be inference tensors.
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = [
                None if t is None else torch.empty(t.shape, dtype=t.dtype, device=t.device)
                for t in examples
            ]
            self._fill(examples)
            device = next(t for t in examples if t is not None).device
            self._graph = torch.cuda.CUDAGraph()
            current, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
            side.wait_stream(current)
            with torch.cuda.stream(side):
                function(*self._inputs)  # keeps initialisation on first use out of the recording
                # Other threads, such as JAX's, may allocate meanwhile.
                self._graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self._results = function(*self._inputs)
                finally:
                    self._graph.capture_end()
            current.wait_stream(side)

    def replay(self, tensors: Tensors) -> Results:
        with torch.inference_mode(False), torch.no_grad():
            self._fill(tensors)
            self._graph.replay()
            if isinstance(self._results, torch.Tensor):
                return self._results.clone()
            return tuple(None if r is None else r.clone() for r in self._results)

    def _fill(self, tensors: Tensors) -> None:
        for own, given in zip(self._inputs, tensors, strict=True):
            if own is not None and given is not None:
                own.copy_(given)


def _can_be_recorded(tensors: Tensors) -> bool:
    plain = (torch.Tensor, torch.nn.Parameter)
    return (
        all(t is None or (t.is_cuda and type(t) in plain) for t in tensors)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not torch.cuda.is_current_stream_capturing()  # the user is recording a graph
    )
