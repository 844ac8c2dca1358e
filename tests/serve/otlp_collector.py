"""An OpenTelemetry collector that keeps the spans it receives."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector:
    """The received spans, in order of arrival."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.headers: list[Any] = []
        self.paths: set[str] = set()
        self.arrived: queue.Queue[Any] = queue.Queue()

    def take(self, count: int) -> list[Any]:
        """Wait for the next spans."""
        return [self.arrived.get(timeout=60) for _ in range(count)]


def attributes(thing: Any) -> dict[str, Any]:
    """Attributes of a span or an event as Python values, without the prefix of their names."""
    found = {}
    for pair in thing.attributes:
        value = getattr(pair.value, pair.value.WhichOneof("value"))
        found[pair.key.removeprefix("firstlight.")] = value
    return found


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.paths.add(self.path)
            collector.headers.append(self.headers)
            is_traces = self.path == "/v1/traces"  # otherwise metrics
            spans = ExportTraceServiceRequest.FromString(body if is_traces else b"")
            for resource in spans.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        collector.arrived.put(span)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()
