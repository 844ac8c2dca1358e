"""What a server has done, in the text format of Prometheus: written here, it needs no package."""

from __future__ import annotations

import threading

from firstlight.telemetry import metrics
from firstlight.telemetry.metrics import Metric
from firstlight.telemetry.values import Values

_OF_SERVER = tuple(m for m in metrics.CATALOGUE if m.name.startswith("firstlight_cache_server_"))


class Metrics:
    """Those of the cache server; many threads count."""

    def __init__(self) -> None:
        self.values = Values()
        self._lock = threading.Lock()
        for result in ("hit", "miss"):
            self.values.counter(metrics.CACHE_SERVER_LOOKUPS, result)
        for metric in (metrics.CACHE_SERVER_SENT, metrics.CACHE_SERVER_RECEIVED):
            self.values.counter(metric)

    def add(self, metric: Metric, *labels: str, amount: int = 1) -> None:
        with self._lock:
            self.values.counter(metric, *labels).add(amount)

    def text(self) -> str:
        with self._lock:
            samples = list(self.values)
        lines = []
        for metric in _OF_SERVER:
            lines.append(f"# HELP {metric.name} {metric.about}")
            lines.append(f"# TYPE {metric.name} {metric.kind.value}")
            for sample in samples:
                if sample.metric is metric:
                    pairs = zip(metric.labels, sample.labels, strict=True)
                    labels = ",".join(f'{name}="{value}"' for name, value in pairs)
                    shown = f"{{{labels}}}" if labels else ""
                    lines.append(f"{metric.name}{shown} {sample.value}")
        return "\n".join(lines) + "\n"
