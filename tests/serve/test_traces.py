"""Spans of requests, received by a real collector."""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import time
from typing import Any

import pytest
from fake_serving import SeenExchange, fake_loaded
from otlp_collector import attributes, collecting

from firstlight.serve.app import App
from firstlight.serve.engine import Engine
from firstlight.serve.models import Models
from firstlight.serve.traces import CollectorError, Sampled, Traces, destination
from firstlight.telemetry import warning_line
from firstlight.telemetry.collectors import Destination
from firstlight.telemetry.values import Values

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def asked(
    *requests: SeenExchange,
    to: Destination | None,
    call: Any = lambda x: x,
    compiles: Any = lambda: 0,
) -> None:
    """Requests to models `double` (buckets of 1 and 8 rows), in one batch, traced."""

    async def body() -> None:
        values = Values()
        engine = Engine(values, compiles)
        engine.traces = None if to is None else Traces(Sampled(to))
        models = Models(engine, values, lambda: 1.0)
        models.put(fake_loaded(call, {1: 1e-6, 8: 1e-6}, "double", version="3", max_queue_rows=0))
        app = App(models, values)
        app.ready = True
        for request in requests:
            app.handle(request)
        while not engine.idle:
            await asyncio.sleep(0)
        engine.close()
        if engine.traces is not None:
            engine.traces.close()

    asyncio.run(body())


def post(numbers: list[float], **headers: str) -> SeenExchange:
    named = {name.encode(): text.encode() for name, text in headers.items()}
    body = f'{{"x": {numbers}}}'.encode()
    return SeenExchange("/models/double", body, headers=named, arrived=time.perf_counter())


def test_a_request_is_a_span_with_its_queue_and_execution_under_the_callers() -> None:
    caller = post([1, 2], traceparent=f"00-{TRACE}-{CALLER}-01", tracestate="vendor=1")
    with collecting() as collector:
        asked(caller, post([3]), to=Destination(collector.url + "/v1/traces", (("key", "secret"),)))
        spans = collector.take(6)
    assert caller.status == 200
    assert collector.headers[0]["key"] == "secret"
    request, queue, execute = spans[:3]
    assert [span.name for span in spans[:3]] == ["infer double", "queue", "execute"]
    assert {span.trace_id.hex() for span in spans[:3]} == {TRACE}
    assert request.parent_span_id.hex() == CALLER and request.trace_state == "vendor=1"
    assert {queue.parent_span_id, execute.parent_span_id} == {request.span_id}
    assert attributes(request) == {
        "model": "double", "version": "3", "rows": 2, "phase": "cold", "compiled": False,
    }  # fmt: skip
    assert attributes(execute) == {
        "bucket": 8, "rows": 3, "padding": 5, "requests": 2, "phase": "cold", "compiled": False,
    }  # fmt: skip
    assert abs(request.start_time_unix_nano - time.time_ns()) < 60e9
    assert request.start_time_unix_nano == queue.start_time_unix_nano <= queue.end_time_unix_nano
    assert queue.end_time_unix_nano == execute.start_time_unix_nano
    assert execute.end_time_unix_nano <= request.end_time_unix_nano
    assert spans[3].trace_id.hex() != TRACE and not spans[3].parent_span_id
    assert len({span.span_id for span in spans}) == 6


def test_a_compile_is_marked_on_the_request_and_execute_spans() -> None:
    count = itertools.count()
    with collecting() as collector:
        asked(
            post([1]),
            to=Destination(collector.url + "/v1/traces"),
            compiles=lambda: next(count),
        )
        request, _, execute = collector.take(3)
    for span in (request, execute):
        assert attributes(span)["compiled"] is True
        [event] = span.events
        assert event.name == "compile" and attributes(event) == {"compiles": 1}


def test_requests_without_a_result_are_errors_with_a_reason() -> None:
    def broken(x: Any) -> Any:
        raise ZeroDivisionError

    too_many = [post([float(i)] * 8) for i in range(2)]  # the queue has room for one bucket only
    with collecting() as collector:
        to = Destination(collector.url + "/v1/traces")
        asked(*too_many, to=to, call=broken)
        full, failed = collector.take(2)
    assert [request.status for request in too_many] == [500, 429]
    assert attributes(full)["refused"] == "queue_full" and full.status.code == 2
    assert attributes(failed)["refused"] == "failed"


def test_callers_that_do_not_sample_are_not_traced_and_bad_headers_are_ignored() -> None:
    without = [f"00-{TRACE}-{CALLER}-00"]
    bad = [f"00-{'0' * 32}-{CALLER}-01", f"ff-{TRACE}-{CALLER}-01", "nonsense",
           f"00-{TRACE}-{CALLER}-01-more"]  # fmt: skip
    with collecting() as collector:
        to = Destination(collector.url + "/v1/traces")
        asked(*(post([1], traceparent=header) for header in [*without, *bad]), to=to)
        spans = collector.take(3 * len(bad))
        assert collector.arrived.empty()
    assert TRACE not in {span.trace_id.hex() for span in spans}


def test_an_unreachable_collector_causes_one_warning_and_fails_no_request(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warning_line, "_said", set())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        request = post([1])
        asked(request, to=Destination(f"http://127.0.0.1:{port}/v1/traces"))
        assert request.status == 200
    assert capfd.readouterr().err.count("cannot be reached") == 1


def test_opentelemetrys_variables_name_the_collector_headers_and_share() -> None:
    assert destination(None, {}) is None
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318/"}
    assert destination(None, base) == Sampled(Destination("http://host:4318/v1/traces"))
    assert destination(None, {**base, "OTEL_TRACES_EXPORTER": "none"}) is None
    assert destination(None, {**base, "OTEL_SDK_DISABLED": "true"}) is None
    more = {
        **base,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://other/spans",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=a%20b,other=c",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "ca.pem",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    headers = (("key", "a b"), ("other", "c"))
    assert destination(None, more) == Sampled(
        Destination("https://other/spans", headers, True, "ca.pem"), 0.25
    )
    assert destination("http://mine:1", more) == Sampled(
        Destination("http://mine:1/v1/traces", headers, True, "ca.pem"), 0.25
    )
    with pytest.raises(CollectorError, match="http://HOST:4318"):
        destination("host:4318", {})


def test_without_the_extra_an_explicit_collector_is_an_error_and_a_variable_a_warning(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from firstlight.cli import main
    from firstlight.cli.serve import _traces

    monkeypatch.setattr(warning_line, "_said", set())
    monkeypatch.setitem(sys.modules, "opentelemetry.proto", None)
    assert main(["serve", "no.py", "--otlp", "http://127.0.0.1:1"]) == 2
    assert "pip install 'firstlight[opentelemetry]'" in capfd.readouterr().err
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert _traces(type("Options", (), {"otlp": None})()) is None
    assert "pip install 'firstlight[opentelemetry]'" in capfd.readouterr().err
