"""Answers to requests, in process: protocol, plain JSON, errors, tokens, canaries."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_serving import SeenExchange, fake_loaded

from firstlight.serve import Input, Model
from firstlight.serve.app import App
from firstlight.serve.compiled_models import Bucket, Loaded
from firstlight.serve.engine import Engine
from firstlight.serve.models import Change, Models
from firstlight.serve.openapi import document
from firstlight.serve.signature import Signature, Tensor
from firstlight.serve.targets import model_in_folder
from firstlight.telemetry import metrics
from firstlight.telemetry.prometheus import Exporter
from firstlight.telemetry.values import Histogram, Values

PAIR = {"x": Input("float32", (2,)), "n": Input("int32", (), default=1)}


def pair_model(**options: Any) -> Loaded:
    """y = n·x for rows of two numbers, by NumPy."""

    def call(x: Any, n: Any) -> Any:
        with np.errstate(over="ignore"):  # as in XLA
            return [x * n[:, None].astype(np.float32)]

    model = Model(call, PAIR, "pair", buckets=(1, 4), **options)
    inputs = (
        Tensor("x", np.dtype(np.float32), (2,)),
        Tensor("n", np.dtype(np.int32), (), np.array(1, np.int32)),
    )
    signature = Signature(inputs, (Tensor("y", np.dtype(np.float32), (2,)),), {}, call)
    buckets = tuple(Bucket(rows, (), call, 1e-5, 0.0, False) for rows in (1, 4))
    return Loaded(model, signature, (), {(): buckets}, 0, False)


class Client:
    """Sends requests to an app and waits for the answers."""

    def __init__(self, token: bytes | None = None, ready: bool = True) -> None:
        self.values = Values()
        self.engine = Engine(self.values)
        self.draw: Callable[[], float] = lambda: 0.5
        self.models = Models(self.engine, self.values, self._drawn)
        self.app = App(self.models, self.values, token)
        self.app.ready = ready

    def _drawn(self) -> float:
        return self.draw()

    def ask(self, path: str, body: Any = b"", **options: Any) -> SeenExchange:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        exchange = SeenExchange(path, data, arrived=time.perf_counter(), **options)

        async def asked() -> None:
            objection = self.app.objection(exchange)
            if objection is None:
                self.app.handle(exchange)
            else:  # as the server does when the head is complete
                exchange.answer(objection.status, [objection.message.encode()], b"", objection.more)
            while not self.engine.idle or exchange.status is None:
                await asyncio.sleep(0)

        asyncio.run(asked())
        assert exchange.status is not None
        return exchange

    def infer(self, *tensors: Any, **more: Any) -> SeenExchange:
        return self.ask("/v2/models/pair/infer", {"inputs": list(tensors), **more})


@pytest.fixture
def client() -> Client:
    made = Client()
    made.models.put(pair_model())
    return made


def tensor(name: str, array: Any, datatype: str = "FP32", **changes: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"name": name, "shape": list(array.shape), "datatype": datatype,
            "data": array.tolist(), **changes}  # fmt: skip


X = tensor("x", [[1.5, 2], [3, 4]])
N = tensor("n", [2], "INT32")


def test_a_request_of_the_protocol_is_answered_with_its_id_and_tensors(client: Client) -> None:
    seen = client.infer(X, tensor("n", [2, 3], "INT32"), id="seven")
    assert seen.status == 200
    assert json.loads(seen.answered) == {
        "model_name": "pair", "model_version": "1", "id": "seven",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [3, 4, 9, 12]}],
    }  # fmt: skip


def test_data_may_be_flat_or_nested(client: Client) -> None:
    flat = {**X, "data": [1.5, 2, 3, 4]}
    spaced = json.dumps({"inputs": [X]}).replace("[[", "[ \n [").encode()
    assert client.infer(flat).answered == client.infer(X).answered
    assert client.ask("/v2/models/pair/infer", spaced).answered == client.infer(X).answered


def test_tensors_travel_as_bytes_in_both_directions(client: Client) -> None:
    x = np.array([[1, 2], [3, 4]], "<f4")
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "shape": [2, 2], "datatype": "FP32",
                 "parameters": {"binary_data_size": 16}},
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()  # fmt: skip
    headers = {b"inference-header-content-length": str(len(head)).encode()}
    seen = client.ask("/v2/models/pair/infer", head + x.tobytes(), headers=headers)
    assert seen.status == 200 and seen.content_type == b"application/octet-stream"
    size = int(seen.more.split(b":")[1])
    assert json.loads(seen.answered[:size])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    np.testing.assert_array_equal(np.frombuffer(seen.answered[size:], "<f4"), x.ravel())


def test_an_input_with_a_default_may_be_left_out_and_others_may_not(client: Client) -> None:
    assert json.loads(client.infer(X).answered)["outputs"][0]["data"] == [1.5, 2, 3, 4]
    seen = client.infer(tensor("n", [1], "INT32"))
    assert seen.status == 400 and b"'x' is missing" in seen.answered


def test_plain_json_is_answered_in_plain_json(client: Client) -> None:
    seen = client.ask("/models/pair", {"x": [[1, 2], [3, 4]], "n": [10, 100]})
    assert json.loads(seen.answered) == {"y": [[10, 20], [300, 400]]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"x": [[1, 2]], "z": [1]}', "unknown field `z`"),
        (b'{"x": [[1, "2"]]}', "$.x[0][1]"),
        (b'{"x": [[1, NaN]]}', "malformed"),
        (b'{"x": [[1, 2], [3]]}', "differ in length"),
        (b'{"x": []}', "0 rows"),
        (b'{"x": [[1, 2, 3]]}', "has shape [1, 3]"),
        (b'{"x": [[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]]}', "send 1 to 4 rows"),
        (b'{"x": [[1, 2]], "n": [1, 2]}', "same number of rows"),
        (b'{"x": [[1, 2]], "n": [4294967296]}', "out of range for INT32"),
        (b'{"x": [[1, 1e300]]}', "out of range for FP32"),
        (b'{"x": ' + b"[" * 50_000, "400"),
        (b"\xff\xfe", "400"),
    ],
)
def test_invalid_json_is_answered_400_with_the_location(
    client: Client, body: bytes, message: str
) -> None:
    seen = client.ask("/models/pair", body)
    assert seen.status == 400
    assert message == "400" or message in json.loads(seen.answered)["error"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "z"}, "its inputs are x, n"),
        ({"datatype": "FP64"}, "the model takes FP32"),
        ({"shape": [2, 3]}, "its shape is [2, 3]"),
        ({"shape": [-2, -2]}, "its shape is"),
        ({"shape": []}, "its shape is"),
        ({"shape": [4], "data": [1, 2, 3, 4]}, "has shape [4]"),
        ({"data": ["1", 2, 3, 4]}, "Expected `float`"),
        ({"data": None}, "Expected `array`"),
        ({"parameters": {"binary_data_size": 16}}, "0 bytes are left"),
    ],
)
def test_a_wrong_tensor_of_the_protocol_is_answered_400(
    client: Client, changes: Any, message: str
) -> None:
    seen = client.infer({**X, **changes})
    assert seen.status == 400
    assert message in json.loads(seen.answered)["error"]


def test_a_wrong_shape_is_answered_with_the_valid_ones(client: Client) -> None:
    seen = client.infer(tensor("x", [[1, 2, 3]]))
    assert json.loads(seen.answered)["valid"] == {
        "inputs": {"x": ["rows", 2], "n": ["rows"]}, "rows": [1, 4],
    }  # fmt: skip


@pytest.mark.parametrize("length", [b"99999", b"-1", b"x", b"3"])
def test_a_wrong_length_of_the_json_part_is_answered_400(client: Client, length: bytes) -> None:
    headers = {b"inference-header-content-length": length}
    body = json.dumps({"inputs": [X]}).encode()
    assert client.ask("/v2/models/pair/infer", body, headers=headers).status == 400


def test_other_methods_encodings_and_paths_have_their_status(client: Client) -> None:
    for path, method, allowed in (
        ("/v2/models/pair/infer", "GET", b"POST"),
        ("/models/pair", "PUT", b"POST"),
        ("/v2/repository/index", "GET", b"POST"),
        ("/v2/repository/models/pair/load", "GET", b"POST"),
        ("/v2", "POST", b"GET, HEAD"),
        ("/v2/models", "DELETE", b"GET, HEAD"),
        ("/v2/models/pair", "POST", b"GET, HEAD"),
        ("/v2/models/pair/config", "POST", b"GET, HEAD"),
        ("/v2/models/pair/stats", "OPTIONS", b"GET, HEAD"),
        ("/v2/models/pair/ready", "PATCH", b"GET, HEAD"),
        ("/v2/health/live", "POST", b"GET, HEAD"),
    ):
        seen = client.ask(path, method=method)
        assert seen.status == 405 and seen.more == b"allow: " + allowed + b"\r\n", path
    encoded = {b"content-encoding": b"br"}
    seen = client.ask("/v2/models/pair/infer", headers=encoded)
    assert seen.status == 415 and b"accept-encoding: gzip, deflate" in seen.more
    versioned = "/v2/models/pair/versions/2/infer"
    for path in ("/v2/models/none/infer", versioned, "/none", "", "*", "//"):
        assert client.ask(path, method="GET").status == 404, path
    assert client.ask("/v2/models/pair/versions/1/infer", {"inputs": [X]}).status == 200


def test_deadlines_come_from_the_header_the_protocol_or_the_model(client: Client) -> None:
    for wrong in (b"0", b"-1", b"nan", b"inf", b"soon", b"1e9"):
        headers = {b"firstlight-timeout": wrong}
        assert client.ask("/models/pair", {"x": [[1, 2]]}, headers=headers).status == 400
    impossible = {b"firstlight-timeout": b"1e-9"}
    seen = client.ask("/models/pair", {"x": [[1, 2]]}, headers=impossible)
    assert seen.status == 429 and seen.more == b"retry-after: 1\r\n"
    assert client.infer(X, parameters={"timeout": 5_000_000}).status == 200
    assert client.infer(X, parameters={"timeout": 3_600_000_000}).status == 200
    for given in ("soon", 0, -1, 1.5, True, 3_600_000_001, 10**30):
        seen = client.infer(X, parameters={"timeout": given})
        assert seen.status == 400 and b"timeout" in seen.answered


def test_requests_are_refused_without_parsing_when_the_queue_is_full(client: Client) -> None:
    """The body is not JSON, which is not noticed."""
    served = client.models.names["pair"].current
    (lane,) = served.lanes.values()
    lane.queued_rows = lane.max_queued_rows
    for path in ("/models/pair", "/v2/models/pair/infer"):
        full = client.ask(path, b"{")
        assert full.status == 429 and b"queue is full" in full.answered
        assert b"retry-after: 1\r\n" in full.more
    lane.queued_rows, lane.row_seconds = 10, 1.0  # ten seconds of work in the queue
    late = client.ask("/models/pair", b"{", headers={b"firstlight-timeout": b"12"})
    assert late.status == 429 and b"too long" in late.answered and b"retry-after: 10" in late.more
    assert client.ask("/v2/models/pair/infer", b"{").status == 400  # its body may contain a timeout
    lane.queued_rows = 0


def test_health_metadata_and_configuration_are_answered(client: Client) -> None:
    assert client.ask("/v2/health/live", method="GET").status == 200
    assert client.ask("/v2/health/ready", method="GET").status == 200
    about = json.loads(client.ask("/v2/models/pair", method="GET").answered)
    assert about["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
    assert json.loads(client.ask("/v2", method="GET").answered)["name"] == "firstlight"
    assert client.ask("/v2/models/pair/ready", method="GET").status == 200
    buckets = json.loads(client.ask("/v2/models/pair/config", method="GET").answered)["buckets"]
    assert [bucket["rows"] for bucket in buckets] == [1, 4]


def test_nothing_is_computed_before_the_server_is_ready() -> None:
    client = Client(ready=False)
    assert client.ask("/v2/health/live", method="GET").status == 200
    assert client.ask("/v2/health/ready", method="GET").status == 503
    assert client.ask("/v2/models/pair/infer").status == 503
    client.models.put(pair_model())
    assert client.infer(X).status == 503


def test_a_token_is_needed_for_everything_but_health() -> None:
    client = Client(token=b"0123456789abcdef")
    client.models.put(pair_model())
    assert client.ask("/v2/health/ready", method="GET").status == 200
    for headers in (
        {},
        {b"authorization": b"Bearer wrong"},
        {b"authorization": "Bearer ü".encode()},
    ):
        seen = client.ask("/v2/models/pair", method="GET", headers=headers)
        assert seen.status == 401 and b"www-authenticate: Bearer" in seen.more
        assert client.ask("/models/pair", {"x": [[1, 2]]}, headers=headers).status == 401
    for scheme in (b"Bearer", b"bearer", b"BEARER", b"Bearer "):
        right = {b"authorization": scheme + b" 0123456789abcdef"}
        assert client.ask("/v2/models/pair", method="GET", headers=right).status == 200
        assert client.ask("/models/pair", {"x": [[1, 2]]}, headers=right).status == 200
    for wrong in (b"Basic 0123456789abcdef", b"0123456789abcdef", b"Bearer0123456789abcdef"):
        assert client.ask("/v2", method="GET", headers={b"authorization": wrong}).status == 401
    announced = {b"content-length": b"9"}  # nobody without the token may send a body
    assert client.ask("/v2/health/ready", method="GET", headers=announced).status == 401


def test_errors_of_a_model_reach_the_log_and_not_the_client(caplog: Any) -> None:
    client = Client()

    def broken(x: Any) -> Any:
        raise RuntimeError("/secret/path")

    client.models.put(fake_loaded(broken, {1: 1e-5}))
    seen = client.ask("/models/fake", {"x": [1]})
    assert seen.status == 500 and b"secret" not in seen.answered
    assert "/secret/path" in caplog.text


def test_nan_is_null_in_json_and_counted(client: Client) -> None:
    client.models.put(fake_loaded(lambda x: x * np.float32("nan"), {1: 1e-5}))
    assert json.loads(client.ask("/models/fake", {"x": [1]}).answered) == {"y": [None]}
    assert b'firstlight_nan_rows_total{model="fake",version="1"} 1.0' in exported(client)


def exported(client: Client) -> bytes:
    return Exporter(client.values).text()


def test_a_new_version_takes_over_and_a_canary_gets_its_share(client: Client) -> None:
    def version() -> str:
        answer: str = json.loads(client.infer(X).answered)["model_version"]
        return answer

    client.models.put(pair_model(version="2"))
    assert version() == "2"
    client.models.put(pair_model(version="3"), canary_share=0.25)
    assert version() == "2"  # 0.5 was drawn
    client.draw = lambda: 0.2
    assert version() == "3"
    client.draw = lambda: 0.9
    asked = {b"firstlight-canary": b"true"}
    seen = client.ask("/v2/models/pair/infer", {"inputs": [X]}, headers=asked)
    assert json.loads(seen.answered)["model_version"] == "3"
    text = exported(client)
    assert b'firstlight_requests_total{code="200",model="pair",version="3"} 2.0' in text
    assert b'firstlight_model_info{model="pair",role="canary",version="3"} 1.0' in text
    client.models.put(pair_model(version="3"))
    assert version() == "3" and client.models.names["pair"].canary is None
    assert b'role="canary"' not in exported(client)


def test_openapi_describes_every_model(client: Client) -> None:
    current = [name.current for name in client.models.names.values()]
    abort = "/v2/models/pair/canary/abort"  # which needs a token
    assert abort not in document(current, with_token=False)["paths"]
    made = document(current, with_token=True)
    assert made["paths"].keys() > {abort, "/v2/models/pair/infer"}
    plain = made["paths"]["/models/pair"]["post"]
    schema = plain["requestBody"]["content"]["application/json"]["schema"]
    assert all(one["required"] == ["x"] for one in schema["anyOf"])
    import jsonschema

    jsonschema.validate({"x": [[1, 2]], "n": [3]}, schema)
    for wrong in ({"x": [[1, 2, 3]]}, {"x": [[1, 2]] * 5}, {"x": [[1, 2]], "n": [1, 2]}, {}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize("whole", [2.0, 2e0, 2])
def test_an_integer_may_be_written_as_a_float(client: Client, whole: float) -> None:
    assert json.loads(client.ask("/models/pair", {"x": [[1, 2]], "n": [whole]}).answered) == {
        "y": [[2, 4]]
    }
    assert client.infer(tensor("x", [[1, 2]]), {**N, "data": [whole]}).status == 200
    for wrong in (2.5, 1e300, "2", None, True):
        assert client.ask("/models/pair", {"x": [[1, 2]], "n": [wrong]}).status == 400
        assert client.infer(tensor("x", [[1, 2]]), {**N, "data": [wrong]}).status == 400


def test_every_metric_is_exported_under_its_name_and_kind(client: Client) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    client.infer(X)
    client.infer(tensor("x", [[1, 2, 3]]))
    found = {f.name: f.type for f in text_string_to_metric_families(exported(client).decode())}
    for metric in metrics.CATALOGUE:
        assert found[metric.name.removesuffix("_total")] == metric.kind.value
        assert metric.name.endswith("_total") == (metric.kind is metrics.Kind.COUNTER)
    text = exported(client)
    assert b'firstlight_requests_total{code="400",model="pair",version="1"} 1.0' in text
    assert b'firstlight_rejected_requests_total{model="pair",reason="invalid"} 1.0' in text
    assert b'firstlight_request_duration_seconds_count{model="pair",phase="cold"} 1.0' in text


def test_every_objective_is_a_bound_of_the_latency_buckets() -> None:
    assert set(metrics.OBJECTIVES) <= set(metrics.REQUEST_DURATION.bounds)


def test_a_rehearsal_uses_every_format_and_is_not_counted(caplog: Any) -> None:
    import asyncio as aio

    from firstlight.serve.rehearsal import rehearse

    loaded, shapes = pair_model(), []
    inner = loaded.lanes[()][0].call

    def call(x: Any, n: Any) -> Any:
        shapes.append(x.shape)
        return inner(x, n)

    from dataclasses import replace

    seen = replace(loaded, lanes={(): tuple(replace(b, call=call) for b in loaded.buckets)})
    client = Client()
    client.models.put(seen)
    aio.run(rehearse([seen]))
    assert set(shapes) == {(1, 2)} and len(shapes) >= 3
    assert caplog.text == ""
    # The server counts none of its requests, durations and rows.
    assert not any(
        sum(series.counts) if isinstance(series, Histogram) else series.value
        for _, _, series in client.values.series
    )
    client.ask("/models/pair", {"x": [[1, 2]]})
    assert client.models.names["pair"].current.succeeded.value == 1


def test_a_browser_without_the_token_gets_a_page_that_asks_for_it() -> None:
    from firstlight.serve.page import render, render_locked

    client = Client(token=b"0123456789abcdef")
    client.models.put(pair_model(about="<b>bold</b>"))
    client.app._open_pages = {b"/": lambda: (render_locked().encode(), b"text/html")}
    seen = client.ask("/", method="GET")
    assert seen.status == 200 and b'id="unlock"' in seen.answered and b"bold" not in seen.answered
    page = render(client.models, True, 0, 1.5)
    assert "&lt;b&gt;bold" in page and "connect-src 'self'" in page
    assert "No compiles during requests" in page
    assert "1 compile during requests" in render(client.models, True, 1, 1.5)


def test_an_answer_that_cannot_be_written_fails_alone(client: Client, caplog: Any) -> None:
    exchanges = [
        SeenExchange("/models/pair", b'{"x": [[1, 2]]}', arrived=time.perf_counter())
        for _ in range(3)
    ]
    write, calls = client.models.names["pair"].current.plain.write, []

    def sometimes(*arguments: Any) -> bytes:
        calls.append(arguments)
        if len(calls) == 2:
            raise ValueError("unwritable")
        return write(*arguments)

    client.models.names["pair"].current.plain.write = sometimes  # type: ignore[method-assign]

    async def asked() -> None:
        for exchange in exchanges:
            client.app.handle(exchange)
        while not client.engine.idle:
            await asyncio.sleep(0)

    asyncio.run(asked())
    assert [exchange.status for exchange in exchanges] == [200, 500, 200]
    assert "unwritable" in caplog.text


def test_a_batch_that_does_not_end_makes_ready_and_then_live_503_with_the_models_name() -> None:
    opened = threading.Event()

    def blocked(x: Any) -> Any:
        assert opened.wait(30)
        return x

    async def body() -> None:
        client = Client()
        app, engine, models, values = client.app, client.engine, client.models, client.values
        models.put(fake_loaded(blocked, {1: 1e-3}, "stuck"))
        models.put(fake_loaded(lambda x: x, {1: 1e-6}, "well"))

        def health(path: str) -> tuple[int | None, bytes]:
            exchange = SeenExchange(path, method="GET")
            app.handle(exchange)
            return exchange.status, exchange.answered

        asked = SeenExchange("/models/stuck", b'{"x": [1]}', arrived=time.perf_counter())
        app.handle(asked)
        while not engine.stuck(0.0):
            await asyncio.sleep(0.001)
        paths = "/v2/health/ready", "/v2/health/live", "/v2/models/stuck/ready"
        assert [health(path) for path in paths] == [(200, b"")] * 3
        app.overdue_seconds = 0.0
        status, text = health("/v2/health/ready")
        assert status == 503 and b"a batch of stuck has run for" in text
        assert health("/v2/models/stuck/ready")[0] == 503
        assert health("/v2/models/well/ready") == health("/v2/health/live") == (200, b"")
        assert next(s.value for s in values if s.metric is metrics.READY) == 0
        app.stuck_seconds = 0.0
        assert health("/v2/health/live")[0] == 503
        opened.set()
        while asked.status is None:
            await asyncio.sleep(0.001)
        assert asked.status == 200
        assert [health(path) for path in paths] == [(200, b"")] * 3
        engine.close()

    asyncio.run(body())


def test_an_error_of_a_model_is_not_counted_as_refused() -> None:
    async def body() -> None:
        client = Client()
        app, engine, models, values = client.app, client.engine, client.models, client.values
        models.put(fake_loaded(lambda x: 1 / 0, {1: 1e-6}, "broken"))
        asked = SeenExchange("/models/broken", b'{"x": [1]}', arrived=time.perf_counter())
        app.handle(asked)
        while asked.status is None:
            await asyncio.sleep(0)
        assert asked.status == 500
        counted = {s.metric: s.labels for s in values if s.value == 1}
        assert counted[metrics.REQUESTS][-1] == "500" and metrics.REJECTED not in counted
        engine.close()

    asyncio.run(body())


ALWAYS = 1.0


def nan_model(version: str = "2") -> Loaded:
    loaded = pair_model(version=version)
    bucket = loaded.lanes[()][-1]
    nan = replace(bucket, call=lambda x, n: [np.full_like(x, np.nan)], rows=4)
    one = replace(nan, rows=1)
    return replace(loaded, lanes={(): (one, nan)})


def with_canary(client: Client, loaded: Loaded, share: float = 0.5) -> None:
    client.models.put(loaded, canary_share=share)


def declared(**options: Any) -> Model:
    return pair_model(**options).model


def removed_from_the_file(client: Client) -> None:
    assert client.models.settle([declared(version="1")])


def with_a_share_of_zero(client: Client) -> None:
    assert client.models.settle([declared(version="2", canary_share=0)])


def with_a_new_current_version(client: Client) -> None:
    client.models.put(pair_model(version="3"))


def aborted(client: Client) -> None:
    client.app.token = b"secret"
    headers = {b"authorization": b"Bearer secret"}
    seen = SeenExchange("/v2/models/pair/canary/abort", headers=headers)
    client.app.handle(seen)
    client.app.token = None
    assert (seen.status, json.loads(seen.answered)) == (200, {"name": "pair", "aborted": "2"})


@pytest.mark.parametrize(
    "end", [removed_from_the_file, with_a_share_of_zero, with_a_new_current_version, aborted]
)
def test_a_canary_is_ended_within_one_batch(client: Client, end: Any) -> None:
    with_canary(client, nan_model(), share=ALWAYS)
    assert json.loads(client.ask("/models/pair", {"x": [[1, 2]]}).answered) == {"y": [[None, None]]}

    async def body() -> list[SeenExchange]:
        asked = [
            SeenExchange("/models/pair", b'{"x": [[1, 2]]}', arrived=time.perf_counter())
            for _ in range(40)
        ]
        for exchange in asked:
            client.app.handle(exchange)  # in the canary's queue
        end(client)
        while any(exchange.status is None for exchange in asked):
            await asyncio.sleep(0)
        return asked

    answers = [json.loads(exchange.answered) for exchange in asyncio.run(body())]
    assert answers == [{"y": [[1, 2]]}] * 40
    assert client.models.names["pair"].canary is None
    text = exported(client)
    assert b'role="canary"' not in text


def test_a_canary_is_aborted_only_by_post_with_a_token_and_only_if_there_is_one(
    client: Client,
) -> None:
    path = "/v2/models/pair/canary/abort"
    assert client.ask(path, {}).status == 403  # the server has no token
    client.app.token = b"secret"
    assert client.ask(path, {}).status == 401
    headers = {b"authorization": b"Bearer secret"}
    assert client.ask(path, {}, headers=headers).status == 409
    assert client.ask(path, {}, method="GET", headers=headers).status == 405


def test_a_canary_that_fails_more_often_is_taken_back_by_itself_and_not_loaded_again(
    client: Client,
) -> None:
    draws = iter(np.random.default_rng(1).random(1000))
    client.draw = lambda: next(draws)
    said: list[str] = []
    client.models.say = said.append
    with_canary(client, nan_model(), share=0.2)
    nans = 0
    for _ in range(200):
        nans += b"null" in client.ask("/models/pair", {"x": [[1, 2]]}).answered
    assert nans == 8  # at the first look
    assert "canary taken back: 8 of its 8 requests failed or gave NaN, 0 of" in said[0]
    assert b'firstlight_canaries_taken_back_total{model="pair"} 1.0' in exported(client)
    assert client.models.change_of(declared(version="2", canary_share=0.2)) is Change.TAKEN_BACK
    assert client.models.change_of(declared(version="3", canary_share=0.2)) is Change.NEW
    assert client.models.change_of(declared(version="1")) is Change.SAME


def test_requests_that_ask_for_the_canary_are_not_compared(client: Client) -> None:
    """They were not chosen at random: whoever tests a canary may send it what fails."""
    with_canary(client, nan_model(), share=0.0)
    asked = {b"firstlight-canary": b"true"}
    for _ in range(50):
        client.ask("/models/pair", {"x": [[1, 2]]}, headers=asked)
    assert client.models.names["pair"].canary is not None


def test_metrics_do_not_grow_with_the_number_of_versions(client: Client) -> None:
    def reload(version: int) -> int:
        client.models.put(pair_model(version=str(version)))
        client.ask("/models/pair", {"x": [[1, 2]]})
        return len(exported(client).splitlines())

    lines = [reload(version) for version in range(2, 20)]
    assert lines[3:] == [lines[3]] * len(lines[3:])
    client.models.remove("pair")
    text = exported(client)
    assert b'model="pair"' not in text
    assert client.ask("/models/pair", {"x": [[1, 2]]}).status == 404


def test_ready_lists_what_was_prepared_if_json_is_asked_for() -> None:
    from firstlight.serve.rehearsal import rehearse

    client = Client()
    loaded = pair_model()
    client.models.put(loaded)
    client.models.rehearsed |= asyncio.run(rehearse([loaded]))
    path, json_wanted = "/v2/health/ready", {b"accept": b"application/json"}
    assert client.ask(path, method="GET").answered == b""
    seen = client.ask(path, method="GET", headers=json_wanted)
    about = json.loads(seen.answered)
    assert seen.status == 200 and about["ready"] is True
    (model,) = about["models"]
    assert (model["name"], model["version"], model["executables"]) == ("pair", "1", 2)
    assert model["shapes"]["inputs"] == {"x": ["rows", 2], "n": ["rows"]}
    assert model["preparation_seconds"] == 0 and model["rehearsal_seconds"] > 0
    client.app.ready = False
    seen = client.ask(path, method="GET", headers=json_wanted)
    assert (seen.status, json.loads(seen.answered)["ready"]) == (503, False)


def test_a_rehearsal_leaves_no_server_behind() -> None:
    """A timer that it forgot would keep its server, once more after every reload."""
    import gc

    from firstlight.serve.http_server import Server
    from firstlight.serve.rehearsal import rehearse

    def servers() -> int:
        gc.collect()
        # `isinstance` would ask objects for their class, and some of torch's warn then.
        return sum(issubclass(type(thing), Server) for thing in gc.get_objects())

    async def body() -> int:
        await rehearse([pair_model()])
        await asyncio.sleep(0.01)  # closing a connection takes a turn of the loop
        return servers()

    before = servers()
    assert asyncio.run(body()) <= before


@pytest.mark.parametrize("rows", [[[]], [[], []]])
def test_a_variable_axis_without_entries_is_answered_with_the_valid_ones(rows: Any) -> None:
    client = Client()
    inputs = (Tensor("x", np.dtype(np.float32), ("n",)),)
    outputs = (Tensor("y", np.dtype(np.float32), ()),)

    def call(x: Any) -> Any:
        return [x.sum(axis=1)]

    model = Model(call, {"x": Input("float32", ("n",))}, "total", axes={"n": (4,)}, buckets=(2,))
    signature = Signature(inputs, outputs, {"n": (4,)}, call)
    lanes = {(4,): (Bucket(2, (4,), call, 1e-5, 0.0, False),)}
    client.models.put(Loaded(model, signature, (), lanes, 0, False))
    assert client.ask("/models/total", {"x": [[1, 2, 3]]}).status == 200
    seen = client.ask("/models/total", {"x": rows})
    assert seen.status == 400 and json.loads(seen.answered)["valid"]["axes"] == {"n": [1, 4]}
    as_protocol = {
        "inputs": [{"name": "x", "shape": [len(rows), 0], "datatype": "FP32", "data": []}]
    }
    assert client.ask("/v2/models/total/infer", as_protocol).status == 400


ENCODINGS = {b"gzip": gzip.compress, b"x-gzip": gzip.compress, b"deflate": zlib.compress}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_compressed_requests_are_answered_and_bounded(client: Client, encoding: bytes) -> None:
    def ask(body: bytes) -> SeenExchange:
        return client.ask("/models/pair", body, headers={b"content-encoding": encoding})

    compress = ENCODINGS[encoding]
    body = compress(b'{"x": [[1, 2]]}')
    assert json.loads(ask(body).answered) == {"y": [[1, 2]]}
    bomb = compress(b'{"x": [[1, 2]]' + b" " * 20_000_000 + b"}")
    assert ask(bomb).status == 413
    for wrong in (b"", body[:-1], body + b"x", b"not compressed", body[2:]):
        assert ask(wrong).status == 400, wrong


def test_compressed_tensors_of_the_protocol_are_read(client: Client) -> None:
    tensors = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32",
                           "parameters": {"binary_data_size": 8}}]}  # fmt: skip
    head = json.dumps(tensors).encode()
    headers = {
        b"content-encoding": b"gzip",
        b"inference-header-content-length": str(len(head)).encode(),
    }
    body = gzip.compress(head + np.array([3, 4], "<f4").tobytes())
    seen = client.ask("/v2/models/pair/infer", body, headers=headers)
    assert json.loads(seen.answered)["outputs"][0]["data"] == [3, 4]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parameters": {"sequence_id": 7}}, "sequence_id"),
        ({"parameters": {"sequence_start": True}}, "sequence_start"),
        ({"parameters": {"priority": 1}}, "priority"),
        ({"parameters": {"priority": False}}, "priority"),
        ({"parameters": {"mine": "x"}}, "mine"),
        ({"parameters": {"binary_data_output": "yes"}}, "binary_data_output"),
        ({"outputs": [{"name": "y", "parameters": {"classification": 2}}]}, "classification"),
        ({"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]}, "shared_mem"),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]}, "binary_data"),
        ({"inputs": [{**X, "parameters": {"shared_memory_region": "r"}}]}, "shared_memory_region"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    client: Client, changes: dict[str, Any], named: str
) -> None:
    seen = client.ask("/v2/models/pair/infer", {"inputs": [X], **changes})
    assert seen.status == 400 and named in json.loads(seen.answered)["error"]


def test_parameters_that_ask_for_nothing_are_accepted(client: Client) -> None:
    nothing = {"priority": 0, "sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert client.infer(X, parameters=nothing).status == 200


def test_statistics_count_requests_batches_and_rows(client: Client) -> None:
    for _ in range(3):
        assert client.infer(X).status == 200
    assert client.infer(tensor("x", [[1, 2, 3]])).status == 400
    for path in ("/v2/models/pair/stats", "/v2/models/stats", "/v2/models/pair/versions/1/stats"):
        (found,) = json.loads(client.ask(path, method="GET").answered)["model_stats"]
        assert (found["name"], found["version"]) == ("pair", "1")
        assert found["inference_count"] == 6 and found["execution_count"] == 3
        assert found["inference_stats"]["success"]["count"] == 3
        assert found["inference_stats"]["success"]["ns"] > 0
        assert found["inference_stats"]["fail"]["count"] == 1


def test_the_repository_lists_models_and_changes_nothing_unless_enabled(client: Client) -> None:
    expected = [{"name": "pair", "version": "1", "state": "READY"}]
    assert json.loads(client.ask("/v2/repository/index").answered) == expected
    assert json.loads(client.ask("/v2/repository/index", {"ready": True}).answered) == expected
    for what in ("load", "unload"):
        seen = client.ask(f"/v2/repository/models/pair/{what}", {})
        assert seen.status == 400 and b"--repository DIR" in seen.answered
    assert client.infer(X).status == 200


def test_models_of_a_folder_are_loaded_and_unloaded_on_request(tmp_path: Path) -> None:
    client = Client()
    text = "from firstlight import serve\n\n@serve.model(inputs={'x': serve.Input()})\n"
    (tmp_path / "new.py").write_text(text + "def new(x):\n    return x\n")
    (tmp_path / "other.py").write_text(text + "def wrong(x):\n    return x\n")
    (tmp_path / "broken.py").write_text("1 / 0")
    prepared = []

    async def prepare(declared: Any) -> None:
        prepared.extend(model.name for model in declared)
        client.models.put(fake_loaded(lambda x: x, {1: 1e-5}, "new"))

    client.app.repository.enable(tmp_path, model_in_folder, prepare)

    def change(what: str, name: str, body: Any = b"") -> tuple[int | None, bytes]:
        seen = client.ask(f"/v2/repository/models/{name}/{what}", body)
        return seen.status, seen.answered

    def states() -> dict[str, str]:
        found = json.loads(client.ask("/v2/repository/index").answered)
        return {one["name"]: one["state"] for one in found}

    assert states() == dict.fromkeys(("broken", "new", "other"), "UNAVAILABLE")
    assert change("load", "new") == (200, b"") and prepared == ["new"]
    assert states()["new"] == "READY"
    assert client.ask("/models/new", {"x": [1]}).status == 200
    # A reload of the files, which do not declare it, keeps it.
    assert client.models.settle([declared()], client.app.repository.loaded) == []
    assert client.ask("/models/new", {"x": [1]}).status == 200
    for name, why in (("other", b"no model called"), ("broken", b"ZeroDivision"), ("..", b"no ..")):
        status, answered = change("load", name)
        assert status == 400 and why in answered
    assert change("load", "new", {"parameters": {"config": "{}"}})[0] == 400
    assert change("unload", "new", {"parameters": {"unload_dependents": False}}) == (200, b"")
    assert states()["new"] == "UNAVAILABLE"
    assert client.ask("/models/new", {"x": [1]}).status == 404
    assert change("unload", "new")[0] == 400
