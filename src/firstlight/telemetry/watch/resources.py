"""Memory of host, devices and arrays, and its leaks; utilization of GPUs; garbage collections."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from firstlight.telemetry import metrics
from firstlight.telemetry.metrics import Metric
from firstlight.telemetry.process_values import memory_bytes
from firstlight.telemetry.values import Values
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.functions import Function, Functions
from firstlight.telemetry.watch.growth import Growth, GrowthWatch

#: Keys of an allocator's statistics in JAX.
_STATISTICS = {
    metrics.DEVICE_MEMORY_USED: "bytes_in_use",
    metrics.DEVICE_MEMORY_LIMIT: "bytes_limit",
    metrics.DEVICE_MEMORY_PEAK: "peak_bytes_in_use",
    metrics.MEMORY_PREALLOCATED: "pool_bytes",
}
_MEBIBYTE = 2**20
#: Metrics of NVIDIA's own exporter (DCGM) for the same quantity, with the factor to our unit. Where
#: it runs, rules record them under our name, for unwatched processes too.
DCGM = {metrics.GPU_UTILIZATION.name: ("DCGM_FI_DEV_GPU_UTIL", 0.01)}


class Memory:
    """Exports what the last `sample()` found, and warns of leaks."""

    def __init__(self, values: Values, functions: Functions) -> None:
        self._values, self._functions = values, functions
        self._now: dict[tuple[Metric, tuple[str, ...]], float] = {}
        self._growth = {name: GrowthWatch() for name in ("host", "device", "arrays")}
        self._suspected: dict[str, str] = {}  # function by memory

    def sample(self) -> None:
        host = memory_bytes()
        devices = device_memory()
        arrays = live_arrays()
        seen: dict[str, float] = {} if host is None else {"host": host[0]}
        for device, statistics in devices.items():
            for metric, name in _STATISTICS.items():
                if name in statistics:
                    self._set(metric, statistics[name], device)
        if devices:
            seen["device"] = sum(s.get("bytes_in_use", 0) for s in devices.values())
        if arrays is not None:
            self._set(metrics.LIVE_ARRAYS, arrays[0])
            self._set(metrics.LIVE_ARRAY_BYTES, arrays[1])
            seen["arrays"] = arrays[1]
        self.note(monotonic(), seen)

    def note(self, seconds: float, seen: Mapping[str, float]) -> None:
        """Check sampled bytes of host, devices and arrays for growth."""
        for memory, count in seen.items():
            growth = self._growth[memory].add(seconds, count)
            rate = 0.0 if growth is None else growth.bytes_per_second
            self._set(metrics.MEMORY_GROWTH, rate, memory)
            self._suspect(memory, growth, seconds)

    def _suspect(self, memory: str, growth: Growth | None, now: float) -> None:
        before = self._suspected.pop(memory, None)
        if before is not None:
            self._values.drop_gauge(metrics.LEAK_SUSPECTED, memory, before)
        if growth is None:
            return
        function, example = _suspect_of(self._functions, growth.since, now)
        self._suspected[memory] = function
        self._values.gauge(metrics.LEAK_SUSPECTED, lambda: 1.0, memory, function)
        if before is not None:
            return
        whose = f"results of {function} stay alive ({example})" if function else _largest_arrays()
        rate = growth.bytes_per_second * 60 / _MEBIBYTE
        say_once(f"leak {memory}", f"{memory} memory grows by {rate:.3g} MiB per minute: {whose}.")

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        key = (metric, labels)
        if key not in self._now:
            self._values.gauge(metric, lambda: self._now[key], *labels)
        self._now[key] = value


def _suspect_of(functions: Iterable[Function], since: float, now: float) -> tuple[str, str]:
    """The function with the most memory in results that stayed alive, and one of these results.

    They must come from several calls over half of the time: keeping one state is not a leak.
    """
    found = [("", "", 0)]
    for function in functions:
        times, arrays = function.alive(since)
        if len(set(times)) >= 3 and times[-1] - times[0] >= (now - since) / 2:
            count = sum(array.nbytes for array in arrays)
            text = f"{arrays[0].dtype}{list(arrays[0].shape)}".replace(" ", "")
            found.append((function.name, text, count))
    name, text, _ = max(found, key=lambda one: one[2])
    return name, text


def device_memory() -> dict[str, Mapping[str, int]]:
    """The allocator's statistics of each device; a CPU has none."""
    if not has_backend():
        return {}
    import jax

    found = {f"{d.platform}:{d.id}": d.memory_stats() for d in jax.local_devices()}
    return {device: statistics for device, statistics in found.items() if statistics}


def live_arrays() -> tuple[int, int] | None:
    """The number of live arrays, and their bytes."""
    if not has_backend():
        return None
    import jax

    arrays = jax.live_arrays()
    count, size = len(arrays), 0
    while arrays:  # releases each array as soon as possible
        size += arrays.pop().nbytes
    return count, size


def _largest_arrays() -> str:
    """The kind of arrays that takes most memory. Slow: it visits all arrays."""
    if not has_backend():
        return "there are no arrays"
    import jax

    bytes_by_kind: Counter[str] = Counter()
    for array in jax.live_arrays():
        bytes_by_kind[f"{array.dtype}{list(array.shape)}".replace(" ", "")] += array.nbytes
    if not bytes_by_kind:
        return "there are no arrays"
    kind, size = bytes_by_kind.most_common(1)[0]
    return f"of all arrays, {kind} take most ({size / _MEBIBYTE:.3g} MiB)"


def has_backend() -> bool:
    """Whether the program has used JAX: the watch must not be the first to initialise devices."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    return bool(bridge is not None and getattr(bridge, "_backends", None))


class Gpus:
    """Exports the utilization of NVIDIA GPUs at the last `sample()`; needs nvidia-ml-py."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._handles: dict[str, Any] | None = None
        self._use: dict[str, float] = {}

    def sample(self) -> None:
        if self._handles is None:
            self._handles = _handles()
            for device in self._handles:
                self._use[device] = 0.0
                read = partial(self._use.__getitem__, device)
                self._values.gauge(metrics.GPU_UTILIZATION, read, device)
        if self._handles:
            import pynvml

            for device, handle in self._handles.items():
                self._use[device] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100


def _handles() -> dict[str, Any]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, or no driver
        return {}
    count = pynvml.nvmlDeviceGetCount()
    return {f"gpu:{n}": pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(count)}


class GarbageCollection:
    """Counts Python's garbage collections and their time until `close()`."""

    def __init__(self, values: Values) -> None:
        generations = [str(number) for number in range(3)]
        self._runs = [values.counter(metrics.GC_COLLECTIONS, g) for g in generations]
        self._seconds = [values.counter(metrics.GC_SECONDS, g) for g in generations]
        self._begin = 0.0
        gc.callbacks.append(self._happened)

    def close(self) -> None:
        if self._happened in gc.callbacks:
            gc.callbacks.remove(self._happened)

    def _happened(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begin = perf_counter()
        elif self._begin:
            self._runs[info["generation"]].add()
            self._seconds[info["generation"]].add(perf_counter() - self._begin)
