"""Metrics over OTLP, received by a real HTTP server and decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
from typing import Any

import jax
import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from scraping import Samples, Sent, receiver, samples

from firstlight import telemetry
from firstlight.telemetry import metrics, otlp
from firstlight.telemetry.collectors import Destination, Signal
from firstlight.telemetry.metrics import CATALOGUE, Kind, Metric
from firstlight.telemetry.process_values import process_samples
from firstlight.telemetry.prometheus import Exporter
from firstlight.telemetry.values import Values


def decoded(sent: Sent) -> ExportMetricsServiceRequest:
    assert (sent.method, sent.path) == ("POST", "/v1/metrics")
    assert sent.headers["Content-Type"] == "application/x-protobuf"
    is_packed = sent.headers["Content-Encoding"] == "gzip"
    return ExportMetricsServiceRequest.FromString(
        gzip.decompress(sent.body) if is_packed else sent.body
    )


def described(message: ExportMetricsServiceRequest) -> dict[str, Any]:
    (resource,) = message.resource_metrics
    (scope,) = resource.scope_metrics
    assert len({metric.name for metric in scope.metrics}) == len(scope.metrics)
    return {metric.name: metric for metric in scope.metrics}


def flattened(message: ExportMetricsServiceRequest) -> Samples:
    """The series as in Prometheus's text, with cumulative buckets."""
    found: Samples = {}
    for name, metric in described(message).items():
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            labels = {pair.key: pair.value.string_value for pair in point.attributes}
            if metric.WhichOneof("data") != "histogram":
                found[(name, frozenset(labels.items()))] = point.as_double
                continue
            bounds = [*map(repr, point.explicit_bounds), "+Inf"]
            for bound, count in zip(bounds, np.cumsum(point.bucket_counts), strict=True):
                key = (f"{name}_bucket", frozenset((labels | {"le": bound}).items()))
                found[key] = count
            found[(f"{name}_count", frozenset(labels.items()))] = point.count
            found[(f"{name}_sum", frozenset(labels.items()))] = point.sum
    return found


def filled() -> Values:
    """A value of every metric of the catalogue, except the system's process metrics."""
    values = Values()
    counted = [metric for metric in CATALOGUE if metric.name.startswith("firstlight_")]
    for number, metric in enumerate(counted, 1):
        labels = [f'{label} "{number}"' for label in metric.labels]
        if metric.kind is Kind.COUNTER:
            values.counter(metric, *labels).add(number)
        elif metric.kind is Kind.GAUGE:
            values.gauge(metric, lambda number=number: number / 4, *labels)  # type: ignore[misc]
        else:
            histogram = values.histogram(metric, *labels)
            histogram.observe(metric.bounds[0])
            histogram.observe(number, times=number)
    return values


def test_a_collector_gets_the_same_series_as_prometheus() -> None:
    values = filled()
    sent = flattened(otlp.encoded(values, now=1e9))
    read = samples(Exporter(values).text().decode())
    assert sent == {key: read[key] for key in read if key[0].startswith("firstlight_")}


def test_names_kinds_and_units_are_those_of_the_catalogue() -> None:
    found = described(otlp.encoded([*filled(), *process_samples()], now=1e9))
    assert set(found) == {metric.name for metric in CATALOGUE}
    kinds = {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}
    for metric in CATALOGUE:
        sent = found[metric.name]
        assert sent.WhichOneof("data") == kinds[metric.kind]
        assert (sent.description, sent.unit) == (metric.about, metric.unit)
    assert found["firstlight_steps_total"].sum.is_monotonic
    for name, unit in {
        "firstlight_step_duration_seconds": "s",
        "firstlight_gc_seconds_total": "s",
        "firstlight_live_array_bytes": "By",
        "firstlight_cache_server_sent_bytes_total": "By",
        "firstlight_memory_growth_bytes_per_second": "By/s",
        "firstlight_gpu_utilization_ratio": "1",
        "firstlight_queue_length": "",
    }.items():
        assert found[name].unit == unit, name


def test_an_unreachable_collector_causes_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    with receiver() as (url, _):
        pass  # closed again: nothing listens there
    watch = telemetry.start(otlp=url, interval_seconds=3600)
    watch._push()
    assert jax.jit(lambda x: x + 5)(np.float32(1)) == 6
    telemetry.stop()
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and "collector" in said[0] and f"{url}/v1/metrics" in said[0]


def test_a_refusal_of_the_collector_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    refusal = ExportMetricsServiceResponse()
    refusal.partial_success.rejected_data_points = 3
    refusal.partial_success.error_message = "too many series"
    with receiver(refusal.SerializeToString()) as (url, _):
        telemetry.start(otlp=url, interval_seconds=3600)
        telemetry.stop()
    assert "too many series" in capfd.readouterr().err


def test_the_variables_of_opentelemetry_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20secret")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        telemetry.start(interval_seconds=3600)
        telemetry.stop()
    (sent,) = received
    assert sent.headers["x-key"] == "a secret" and sent.headers["Content-Encoding"] == "gzip"
    assert described(decoded(sent))


@pytest.mark.parametrize(
    ("variables", "url", "warning"),
    [
        ({}, None, ""),
        ({"METRICS_ENDPOINT": "http://c/own/path"}, "http://c/own/path", ""),
        ({"ENDPOINT": "http://c:1/"}, "http://c:1/v1/metrics", ""),
        ({"ENDPOINT": "http://c:4317", "PROTOCOL": "grpc"}, None, "http/protobuf only"),
        ({"ENDPOINT": "c:4318"}, None, "http://HOST:4318"),
    ],
)
def test_opentelemetrys_variables_select_the_collector(
    variables: dict[str, str],
    url: str | None,
    warning: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    environment = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in variables.items()}
    found = Destination.of_variables(environment, Signal.METRICS)
    assert (None if found is None else found.url) == url
    assert warning in capfd.readouterr().err
    for off in ({"OTEL_METRICS_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}):
        assert Destination.of_variables(environment | off, Signal.METRICS) is None


def test_without_the_extra_nothing_is_sent_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(otlp, "find_spec", lambda name: None)
    with receiver() as (url, received):
        telemetry.start(otlp=url, interval_seconds=3600)
        telemetry.stop()
    said = capfd.readouterr().err.splitlines()
    assert not received and len(said) == 1 and "firstlight[opentelemetry]" in said[0]


def test_a_metric_missing_from_the_catalogue_is_not_sent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    values = Values()
    values.counter(Metric("firstlight_unheard_of_total", Kind.COUNTER, "?")).add()
    values.counter(metrics.STEPS, "f", "ok").add()
    assert set(described(otlp.encoded(values, now=1e9))) == {"firstlight_steps_total"}
    assert "firstlight_unheard_of_total" in capfd.readouterr().err


def test_a_server_sends_to_the_collector_that_the_variables_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_the_end: list[Any] = []
    monkeypatch.setattr("atexit.register", at_the_end.append)
    otlp.export_where_asked(Values())
    assert not at_the_end
    values = Values()
    values.counter(metrics.REQUESTS, "demo", "1", "200").add(4)
    with receiver() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        otlp.export_where_asked(values)
        (end,) = at_the_end
        end()
    (sent,) = received
    labels = {"model": "demo", "version": "1", "code": "200"}
    assert flattened(decoded(sent))[("firstlight_requests_total", frozenset(labels.items()))] == 4
