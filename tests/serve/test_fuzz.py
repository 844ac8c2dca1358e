"""Ten thousand requests that are wrong in every way: no answer 5xx, no exception, nothing kept."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from test_app import Client, pair_model
from test_http import Transport, receive

from firstlight.serve.description import openapi
from firstlight.serve.http_server import Connection, Limits, Server

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from wrong_requests import request_of

SEED, COUNT = 20261116, 10_000


async def answers(client: Client, count: int) -> Counter[int]:
    draw = random.Random(SEED)
    server = Server(client.app, Limits(body_bytes=20_000))
    seen: Counter[int] = Counter()
    for _ in range(count):
        transport = Transport()
        connection = Connection(server)
        connection.connection_made(transport)
        data = request_of(draw)
        cut = draw.randrange(len(data) + 1)
        for part in (data[:cut], data[cut:]):
            receive(connection, part)
        while not client.engine.idle:
            await asyncio.sleep(0)
        seen.update(int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", transport.written))
        connection.connection_lost(None)
    assert server.body_bytes == 0 and not server.connections
    return seen


def test_no_invalid_request_is_answered_5xx_or_leaks_memory() -> None:
    client = Client()
    client.models.put(pair_model())
    asyncio.run(answers(client, 200))  # what is made once
    gc.collect()
    before = len(gc.get_objects())
    seen = asyncio.run(answers(client, COUNT))
    gc.collect()
    assert not [code for code in seen if code >= 500], seen
    assert {200, 400, 404, 405, 413, 415} <= set(seen)
    assert seen[200] > 100 and seen[400] > 1000
    assert len(gc.get_objects()) - before < 200


def test_requests_that_openapi_forbids_are_answered_4xx_and_none_5xx() -> None:
    """Requests that schemathesis makes of the page: such as fit it, and such as do not."""
    schemathesis = pytest.importorskip("schemathesis")
    client = Client()
    client.models.put(pair_model())
    page = openapi([name.current for name in client.models.names.values()], with_token=False)
    seen = Counter[tuple[str, int]]()

    def ask(mode: str, case: Any) -> None:
        sent = case.as_transport_kwargs(base_url="http://h")
        body = sent.get("data", b"") if "json" not in sent else json.dumps(sent["json"])
        data = body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass")
        answer = client.ask(case.path, data)
        assert answer.status is not None
        seen[mode, answer.status] += 1

    for path in ("/models/pair", "/v2/models/pair/infer"):
        operation = schemathesis.openapi.from_dict(page)[path]["POST"]
        for mode in ("positive", "negative"):
            cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

            @hypothesis.seed(SEED)
            @hypothesis.settings(
                max_examples=15,
                database=None,
                deadline=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(cases)
            def asked(case: Any) -> None:
                ask(mode, case)  # noqa: B023 - called below, in the same round

            asked()
    assert {status for _, status in seen} <= {200, 400}, seen
    assert seen["positive", 200] > 2 and seen["negative", 400] > 15, seen
    assert not seen["negative", 200], seen
