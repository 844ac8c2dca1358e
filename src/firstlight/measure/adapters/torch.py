"""PyTorch, eager and compiled. Phases of torch.compile come from its own compilation metrics."""

from firstlight.measure.adapters import Adapter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Torch(Adapter):
    """PyTorch as the program wrote it."""

    def __init__(self) -> None:
        self._torch: "Any" = None
        self._dynamo: "Any" = None
        self._refusals: list[str] = []

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

    def sync(self, value: "Any") -> "Any":
        if self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        return value

    def to_numpy(self, value: "Any") -> "Any":
        if isinstance(value, self._torch.Tensor):
            return value.detach().to("cpu").numpy()
        return super().to_numpy(value)

    def describe(self, leaf: "Any") -> "dict[str, Any] | None":
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

    def threads(self) -> "dict[str, Any]":
        return {"torch": self._torch.get_num_threads()}

    def precision(self) -> "dict[str, Any]":
        return {
            "float32_matmul_precision": self._torch.get_float32_matmul_precision(),
            "platform": "cuda" if self._torch.cuda.is_available() else "cpu",
        }


class TorchCompile(Torch):
    """PyTorch with `torch.compile` applied where the program says."""

    def load(self) -> None:
        super().load()
        # torch.compile imports its compiler on first use: import time, wherever it happens.
        import torch._dynamo.utils
        import torch._inductor.compile_fx

        self._dynamo = torch._dynamo.utils

    def compile(self, function: "Any") -> "Any":
        return self._torch.compile(function)

    def phases_ns(self) -> "dict[str, int | None]":
        trace = lower = compiled = 0.0
        metrics = self._dynamo.get_compilation_metrics()
        if not metrics:
            return {"trace": None, "lower": None, "compile": None}
        for one in metrics:
            frame = one.entire_frame_compile_time_s or 0.0
            backend = one.backend_compile_time_s or 0.0
            inductor = one.inductor_compile_time_s
            trace += frame - backend
            if inductor is None:  # nothing was lowered: the result came from the cache
                compiled += backend
            else:
                lower += backend - inductor
                compiled += inductor
        return {
            "trace": int(trace * 1e9),
            "lower": int(lower * 1e9),
            "compile": int(compiled * 1e9),
        }

    def counts(self) -> "dict[str, int | None]":
        stats = self._dynamo.counters["stats"]
        frames = len(self._dynamo.get_compilation_metrics())
        return {
            "traces": frames,
            "lowerings": int(stats.get("unique_graphs", 0)),
            "compiles": int(stats.get("unique_graphs", 0)),
            "graph_breaks": int(sum(self._dynamo.counters["graph_break"].values())),
        }

    def cache_counts(self) -> "dict[str, Any]":
        # The graph cache is counted: an answer of the autograd cache counts as one of its hits.
        graphs = self._dynamo.counters["inductor"]
        hits = int(graphs.get("fxgraph_cache_hit", 0))
        bypassed = int(graphs.get("fxgraph_cache_bypass", 0))
        requests = hits + bypassed + int(graphs.get("fxgraph_cache_miss", 0))
        return {
            "requests": requests,
            "hits": hits,
            "enabled": requests > 0,
            "refusals": self._refusals,
        }

    def explain_cache(self) -> None:
        import logging

        refusals = self._refusals

        class Collect(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                message = record.getMessage()
                if message.startswith("Bypassing"):
                    refusals.append(message)

        for name in ("_inductor.codecache", "_functorch._aot_autograd.autograd_cache"):
            logger = logging.getLogger(f"torch.{name}")
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(Collect())
