"""The text that a Prometheus server reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from firstlight.telemetry.metrics import CATALOGUE, Kind
from firstlight.telemetry.values import Histogram, Sample, Values

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAMILIES = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class Exporter(Collector):
    """`text()` of values, and of this process's memory and processor time."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Every metric of the catalogue, in its order, also where nothing was counted yet."""
        by_metric: dict[str, list[Sample]] = {metric.name: [] for metric in CATALOGUE}
        for sample in self._values:
            by_metric[sample.metric.name].append(sample)
        for metric in CATALOGUE:
            family = _FAMILIES[metric.kind](metric.name, metric.about, labels=metric.labels)
            _fill(family, by_metric[metric.name])
            yield family


def _fill(family: Any, samples: Iterable[Sample]) -> None:
    for sample in samples:
        if isinstance(sample.value, Histogram):
            bounds = (*map(repr, sample.value.bounds), "+Inf")
            buckets = list(zip(bounds, accumulate(sample.value.counts), strict=True))
            family.add_metric(sample.labels, buckets=buckets, sum_value=sample.value.total)
        else:
            family.add_metric(sample.labels, sample.value)
