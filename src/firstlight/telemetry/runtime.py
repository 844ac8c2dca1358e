"""Versions and devices of a process, fallback to another platform, and recent deployment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.metadata import distributions, version

from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

#: The platform that a process is expected to run on: `cuda`, `rocm`, `tpu` or `cpu`.
EXPECTED_VARIABLE = "FIRSTLIGHT_EXPECT_PLATFORM"
#: How long a new version or process counts as being deployed.
DEPLOY_VARIABLE = "FIRSTLIGHT_DEPLOY_SECONDS"
DEPLOY_SECONDS = 300.0
_ALIASES = {"cuda": "gpu", "rocm": "gpu"}


def expected_platform() -> str | None:
    """JAX's name of the expected platform: as set, or gpu if JAX's CUDA plugin is installed."""
    if named := os.environ.get(EXPECTED_VARIABLE):
        return _ALIASES.get(named, named)
    if os.environ.get("JAX_PLATFORMS"):
        return None  # chosen on purpose
    names = (str(found.metadata["Name"]) for found in distributions())
    has_plugin = any(n.replace("_", "-").startswith("jax-cuda") for n in names)
    return "gpu" if has_plugin else None


def watch_runtime(values: Values) -> None:
    """Export versions, devices, and whether JAX fell back to another platform."""
    import jax

    device = jax.devices()[0]
    labels = (jax.__version__, version("jaxlib"), device.platform, device.device_kind)
    values.gauge(metrics.RUNTIME_INFO, lambda: 1.0, *labels)
    fallback = expected_platform() not in (None, device.platform)
    values.gauge(metrics.DEVICE_FALLBACK, lambda: float(fallback))


class DeployWindows:
    """Exports which models were deployed recently; "" stands for the whole process."""

    def __init__(self, values: Values, clock: Callable[[], float] = time.monotonic) -> None:
        self._values, self._clock = values, clock
        self._seconds = float(os.environ.get(DEPLOY_VARIABLE, DEPLOY_SECONDS))
        self._ends: dict[str, float] = {}

    def open(self, model: str = "") -> None:
        """A deployment of this model begins or continues; it ends some time after the last call."""
        self._ends[model] = self._clock() + self._seconds
        self._values.gauge(
            metrics.DEPLOY_IN_PROGRESS, lambda: float(self._clock() < self._ends[model]), model
        )
