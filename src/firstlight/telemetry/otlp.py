"""Exports metrics over OTLP from a background thread; needs firstlight[opentelemetry]."""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from firstlight.telemetry.collectors import Destination, Signal, add_resource
from firstlight.telemetry.metrics import CATALOGUE, Kind, Metric
from firstlight.telemetry.process_values import identity, process_samples, started
from firstlight.telemetry.values import Histogram, Sample, Values
from firstlight.telemetry.warning_line import say_once, say_unknown

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

#: Between two messages of a server; watched programs have their own interval.
_INTERVAL_SECONDS = 10.0


class Collector:
    """`push()` sends all values. They are cumulative, so a lost message loses nothing."""

    def __init__(self, destination: Destination, samples: Callable[[], Iterable[Sample]]) -> None:
        self._to, self._samples = destination, samples
        self._is_possible = find_spec("opentelemetry") is not None and (
            find_spec("opentelemetry.proto") is not None
        )
        if not self._is_possible:
            say_once(
                "otlp",
                "metrics are not sent over OTLP: pip install 'firstlight[opentelemetry]' in the "
                "program's environment",
            )

    def push(self) -> None:
        if not self._is_possible:
            return
        answer = self._to.send(encoded(self._samples(), time.time()).SerializeToString())
        if answer is not None:
            _say_refused(answer)


def encoded(samples: Iterable[Sample], now: float) -> ExportMetricsServiceRequest:
    """An OTLP message with cumulative values; now: in seconds since 1970."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    message = ExportMetricsServiceRequest()
    of_process = message.resource_metrics.add()
    program, instance = identity()
    own = {"service.name": program, "service.instance.id": instance}
    add_resource(of_process, {**own, "host.name": socket.gethostname()})
    scope = of_process.scope_metrics.add()
    scope.scope.name = "firstlight"
    times = {"time_unix_nano": int(now * 1e9), "start_time_unix_nano": int(started() * 1e9)}
    known = {metric.name for metric in CATALOGUE}
    points: dict[str, Any] = {}
    for metric, labels, value in samples:
        if metric.name not in known:
            say_unknown(metric)
            continue
        if metric.name not in points:
            points[metric.name] = _points(scope.metrics.add(), metric)
        point = points[metric.name].add(**times)
        for name, label in zip(metric.labels, labels, strict=True):
            point.attributes.add(key=name).value.string_value = label
        _put(point, value)
    return message


def export_where_asked(values: Values) -> None:
    """Send these values periodically and at exit, if OpenTelemetry's variables name a collector."""
    destination = Destination.of_variables(os.environ, Signal.METRICS)
    if destination is None:
        return
    collector = Collector(destination, lambda: [*values, *process_samples()])

    ending = threading.Event()

    def run() -> None:
        while not ending.wait(_INTERVAL_SECONDS):
            collector.push()

    def end() -> None:
        ending.set()
        collector.push()

    atexit.register(end)
    threading.Thread(target=run, name="firstlight otlp", daemon=True).start()


def _points(made: Any, metric: Metric) -> Any:
    """Describe a metric, and return its (empty) list of points."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

    made.name, made.description, made.unit = metric.name, metric.about, metric.unit
    if metric.kind is Kind.GAUGE:
        return made.gauge.data_points
    kind = made.sum if metric.kind is Kind.COUNTER else made.histogram
    kind.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
    if metric.kind is Kind.COUNTER:
        kind.is_monotonic = True
    return kind.data_points


def _put(point: Any, value: float | Histogram) -> None:
    if isinstance(value, Histogram):
        counts = list(value.counts)
        point.bucket_counts.extend(counts)
        point.explicit_bounds.extend(value.bounds)
        point.count, point.sum = sum(counts), value.total
    else:
        point.as_double = value


def _say_refused(answer: bytes) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceResponse,
    )

    refused = ExportMetricsServiceResponse.FromString(answer).partial_success
    if refused.rejected_data_points:
        say_once("otlp refused", f"the collector refuses metrics: {refused.error_message}")
