"""PyTorch, eager and compiled. Phases of torch.compile come from its own compilation metrics."""

import sys

from firstlight.measure.adapters import Adapter, collect_messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from firstlight.measure.adapters import Facts, Function, HostArray


class Torch(Adapter):
    """PyTorch as written: compiled, partly compiled or eager."""

    watches: "tuple[str, ...]" = ("torch", "torch.compile")

    def __init__(self) -> None:
        self._torch: "Any" = None
        self._refusals: list[str] = []
        self._marked = 0  # compilations before the first call

    def load(self) -> None:
        import torch

        self._torch = torch
        self.sync_policy = (
            "torch.cuda.synchronize after the call"
            if torch.cuda.is_available()
            else "none needed: CPU kernels finish before the call returns"
        )

    def initialise(self) -> bool:
        if not self._torch.cuda.is_available():
            return False
        self._torch.cuda.init()
        self._torch.cuda.synchronize()
        return True

    def sync(self, value: object) -> object:
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        return value

    def leaves(self, value: object) -> list[object]:
        from torch.utils import _pytree

        return [leaf for leaf in _pytree.tree_leaves(value) if leaf is not None]

    def to_numpy(self, value: object) -> "HostArray":
        if isinstance(value, self._torch.Tensor):
            host = value.detach().to("cpu")
            # bfloat16 and smaller types do not exist in NumPy; float32 represents them exactly.
            narrow = host.is_floating_point() and host.element_size() < 4
            array: "HostArray" = (host.float() if narrow else host).numpy()
            return array
        return super().to_numpy(value)

    def describe(self, leaf: object) -> "Facts | None":
        if not isinstance(leaf, self._torch.Tensor):
            return super().describe(leaf)
        return {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "layout": "C" if leaf.is_contiguous() else "strided",
            "device": str(leaf.device),
            "bytes": leaf.element_size() * leaf.nelement(),
        }

    def peak_device_bytes(self) -> "int | None":
        cuda = self._torch.cuda
        return int(cuda.max_memory_allocated()) if cuda.is_available() else None

    def threads(self) -> "Facts":
        return {"torch": self._torch.get_num_threads()}

    def precision(self) -> "Facts":
        return {
            "float32_matmul_precision": self._torch.get_float32_matmul_precision(),
            "platform": "cuda" if self._torch.cuda.is_available() else "cpu",
        }

    @property
    def _dynamo(self) -> "Any":
        """The module with torch.compile's metrics; None until something has imported it."""
        return sys.modules.get("torch._dynamo.utils")

    def mark(self, peak_host_bytes: "Callable[[], bytes]") -> None:
        self._marked = len(self._metrics())

    def _metrics(self) -> "list[Any]":
        return list(self._dynamo.get_compilation_metrics()) if self._dynamo else []

    def phases_ns(self) -> "dict[str, int | None]":
        found = self._metrics()[self._marked :]
        if not found:
            return {"trace": None, "lower": None, "compile": None}
        seconds = {"trace": 0.0, "lower": 0.0, "compile": 0.0}
        for one in found:
            frame, backend = one.entire_frame_compile_time_s, one.backend_compile_time_s or 0.0
            if frame is None:  # a backward graph, compiled separately when first needed
                seconds["compile"] += (one.duration_us or 0) / 1e6
                continue
            # Without an Inductor time the result came from the cache, and nothing was lowered.
            inductor = one.inductor_compile_time_s
            compiled = backend if inductor is None else inductor
            seconds["trace"] += frame - backend
            seconds["lower"] += backend - compiled
            seconds["compile"] += compiled
        return {phase: int(value * 1e9) for phase, value in seconds.items()}

    def counts(self) -> "dict[str, int | None]":
        if not self._dynamo:
            return super().counts()
        graphs = int(self._dynamo.counters["stats"].get("unique_graphs", 0))
        breaks = sum(self._dynamo.counters["graph_break"].values())
        frames = [m for m in self._metrics() if m.entire_frame_compile_time_s is not None]
        return {
            "traces": len(frames),
            "lowerings": graphs,
            "compiles": graphs,
            "graph_breaks": int(breaks),
        }

    def cache_counts(self) -> "Facts":
        if not self._dynamo:
            return super().cache_counts()
        # These count the graph cache; a hit of the autograd cache counts as one of its hits.
        graphs = self._dynamo.counters["inductor"]
        hits = int(graphs.get("fxgraph_cache_hit", 0))
        bypassed = int(graphs.get("fxgraph_cache_bypass", 0))
        requests = hits + bypassed + int(graphs.get("fxgraph_cache_miss", 0))
        return {
            "requests": requests,
            "hits": hits,
            "bypassed": bypassed,
            "enabled": requests > 0,
            "refusals": self._refusals,
        }

    def explain_cache(self) -> None:
        names = ("_inductor.codecache", "_functorch._aot_autograd.autograd_cache")
        loggers = tuple(f"torch.{name}" for name in names)
        collect_messages(loggers, ("Bypassing",), self._refusals)


class TorchEager(Torch):
    """PyTorch without torch.compile; programs that use it are rejected."""

    watches = ("torch",)

    def phases_ns(self) -> "dict[str, int | None]":
        return Adapter.phases_ns(self)

    def counts(self) -> "dict[str, int | None]":
        return Adapter.counts(self)

    def cache_counts(self) -> "Facts":
        return Adapter.cache_counts(self)


class TorchCompile(Torch):
    """PyTorch with `torch.compile` applied where the program says."""

    def load(self) -> None:
        super().load()
        # torch.compile would import its compiler on first use; count that as import time.
        import torch._dynamo.utils
        import torch._inductor.compile_fx

    def listen(self) -> None:
        # By default only the latest 64 compilations are kept.
        self._dynamo.set_compilation_metrics_limit(10_000)

    def compile(self, function: "Function") -> "Function":
        compiled: "Function" = self._torch.compile(function)
        return compiled
