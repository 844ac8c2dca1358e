"""Use of GPUs, from NVIDIA's management library where nvidia-ml-py is installed."""

from __future__ import annotations

from functools import partial
from typing import Any

from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

#: What NVIDIA's own exporter (DCGM) says of the same: its name, and what makes it our unit. Rules
#: record it under our name where that exporter runs, also for processes that are not watched.
DCGM = {metrics.GPU_UTILIZATION.name: ("DCGM_FI_DEV_GPU_UTIL", 0.01)}


class Gpus:
    """`sample()` reads the use of each GPU; nothing where there is none."""

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
