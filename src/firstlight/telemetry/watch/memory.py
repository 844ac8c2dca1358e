"""Memory of the host, of devices and of arrays: as it is now, and whether it grows steadily."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from firstlight.telemetry import metrics
from firstlight.telemetry.metrics import Metric
from firstlight.telemetry.process_values import memory_bytes
from firstlight.telemetry.values import Values
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.functions import Function, Functions
from firstlight.telemetry.watch.growth import Growth, GrowthWatch

#: What JAX's allocators say, by the metric.
_STATISTICS = {
    metrics.DEVICE_MEMORY_USED: "bytes_in_use",
    metrics.DEVICE_MEMORY_LIMIT: "bytes_limit",
    metrics.DEVICE_MEMORY_PEAK: "peak_bytes_in_use",
    metrics.MEMORY_PREALLOCATED: "pool_bytes",
}
_MEBIBYTE = 2**20


class Memory:
    """`sample()` looks; in between, what was seen last is what is exported."""

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
        """Whether what was seen grows."""
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
        function, example = holder(self._functions, growth.since, now)
        self._suspected[memory] = function
        self._values.gauge(metrics.LEAK_SUSPECTED, lambda: 1.0, memory, function)
        if before is not None:
            return
        whose = f"results of {function} stay alive ({example})" if function else most_arrays()
        rate = growth.bytes_per_second * 60 / _MEBIBYTE
        say_once(f"leak {memory}", f"{memory} memory grows by {rate:.3g} MiB per minute: {whose}.")

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        key = (metric, labels)
        if key not in self._now:
            self._values.gauge(metric, lambda: self._now[key], *labels)
        self._now[key] = value


def holder(functions: Iterable[Function], since: float, now: float) -> tuple[str, str]:
    """The function with the most memory in results that stayed alive, and one of those.

    They have to be of several calls over half of the time: a state that is kept is no leak.
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
    """What the allocator of each device says; nothing of the CPU's, which has none."""
    if not has_backend():
        return {}
    import jax

    found = {f"{d.platform}:{d.id}": d.memory_stats() for d in jax.local_devices()}
    return {device: statistics for device, statistics in found.items() if statistics}


def live_arrays() -> tuple[int, int] | None:
    """How many arrays there are, and their bytes."""
    if not has_backend():
        return None
    import jax

    arrays = jax.live_arrays()
    count, size = len(arrays), 0
    while arrays:  # held no longer than needed
        size += arrays.pop().nbytes
    return count, size


def most_arrays() -> str:
    """What there is most of, where the function is not known. Asked once: it looks at all."""
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
    """Whether the program has used JAX: a watch is not to be what starts a device."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    return bool(bridge is not None and getattr(bridge, "_backends", None))
