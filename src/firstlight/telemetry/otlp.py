"""Metrics over OTLP/HTTP, as collectors of OpenTelemetry read them; firstlight[opentelemetry].

Only the messages (opentelemetry-proto) are loaded, and by our own thread: the SDK with its exporter
would cost the program more than half a second of imports.
"""

from __future__ import annotations

import atexit
import gzip
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request

from firstlight.telemetry.metrics import CATALOGUE, Kind, Metric
from firstlight.telemetry.process_values import identity, process_samples, started
from firstlight.telemetry.sending import send
from firstlight.telemetry.values import Histogram, Sample, Values
from firstlight.telemetry.warning_line import say_once, say_unknown

if TYPE_CHECKING:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

_PATH = "/v1/metrics"
#: Between two messages of a server; a program under watch has an interval of its own.
_INTERVAL_SECONDS = 10.0
_PREFIX = "OTEL_EXPORTER_OTLP_"


@dataclass(frozen=True)
class Destination:
    """Where a collector listens, and what it wants to be told with every message."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    is_compressed: bool = False
    certificate: str | None = None  # file of the authorities that are trusted

    @classmethod
    def at(cls, url: str, environment: Mapping[str, str]) -> Destination:
        """The collector at an address, and what OpenTelemetry's variables say of it.

        Raises:
            ValueError: An address that is none.
        """
        return cls(
            collector_url(url),
            tuple(_pairs(_said("HEADERS", environment)).items()),
            _said("COMPRESSION", environment) == "gzip",
            _said("CERTIFICATE", environment) or None,
        )

    @classmethod
    def of_variables(cls, environment: Mapping[str, str]) -> Destination | None:
        """The collector that OpenTelemetry's variables name, if they do; what is wrong is said."""
        if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        url = _said("ENDPOINT", environment)
        if not url or environment.get("OTEL_METRICS_EXPORTER", "otlp") != "otlp":
            return None
        try:
            if _said("PROTOCOL", environment) == "grpc":
                raise ValueError(
                    f"{_PREFIX}PROTOCOL=grpc: metrics are sent as http/protobuf only. Give the "
                    "collector's address for HTTP: --otlp http://HOST:4318"
                )
            made = cls.at(url, environment)
        except ValueError as error:
            say_once("otlp", str(error))
            return None
        exact = environment.get(f"{_PREFIX}METRICS_ENDPOINT")
        return replace(made, url=exact) if exact else made


def _said(name: str, environment: Mapping[str, str]) -> str:
    """By one of OpenTelemetry's variables: that for metrics, or that for everything."""
    names = (f"{_PREFIX}METRICS_{name}", f"{_PREFIX}{name}")
    return next((value for n in names if (value := environment.get(n))), "")


def collector_url(text: str) -> str:
    """Where the collector at this address takes metrics."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not the URL of a collector: give http://HOST:4318")
    base = text.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


class Collector:
    """`push()` sends all that was counted. Down: one warning, and the next message has it all."""

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
        body = encoded(self._samples(), time.time()).SerializeToString()
        headers = {"Content-Type": "application/x-protobuf", **dict(self._to.headers)}
        if self._to.is_compressed:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        request = Request(self._to.url, body, headers, method="POST")
        answer = send(request, "collector", self._trusted())
        if answer is not None:
            _say_refused(answer)

    def _trusted(self) -> ssl.SSLContext | None:
        known = self._to.certificate
        return None if known is None else ssl.create_default_context(cafile=known)


def encoded(samples: Iterable[Sample], now: float) -> ExportMetricsServiceRequest:
    """A message with every metric of the catalogue that has a value; cumulative.

    Args:
        now: In seconds since 1970.
    """
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    message = ExportMetricsServiceRequest()
    resource = message.resource_metrics.add()
    for name, text in _resource().items():
        resource.resource.attributes.add(key=name).value.string_value = text
    scope = resource.scope_metrics.add()
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
    """Send these values from now on, if OpenTelemetry's variables name a collector."""
    destination = Destination.of_variables(os.environ)
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
    """Describe a metric; the points that it has, of which there are none yet."""
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


def _resource() -> dict[str, str]:
    """Which process this is. What OpenTelemetry's variables say comes first."""
    program, instance = identity()
    own = {
        "service.name": program,
        "service.instance.id": instance,
        "host.name": socket.gethostname(),
    }
    said = _pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := os.environ.get("OTEL_SERVICE_NAME"):
        said["service.name"] = name
    return own | said


def _pairs(text: str) -> dict[str, str]:
    """`a=b,c=d` with percent signs, as OpenTelemetry's variables are written."""
    split = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in split}


def _say_refused(answer: bytes) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceResponse,
    )

    refused = ExportMetricsServiceResponse.FromString(answer).partial_success
    if refused.rejected_data_points:
        say_once("otlp refused", f"the collector refuses metrics: {refused.error_message}")
