"""The exported metrics of a process, read by Prometheus's own parser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer

from prometheus_client.parser import text_string_to_metric_families

from firstlight.telemetry.watch.process import ProcessWatch

Scrape = Callable[..., float]
Checks = Callable[[], dict[str, float]]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Values by name and labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def everything(watch: ProcessWatch) -> Samples:
    return samples(watch.text().decode())


@dataclass(frozen=True)
class Sent:
    """A request that the receiver got."""

    method: str
    path: str
    headers: Message
    body: bytes


@contextmanager
def receiver(answer: bytes = b"") -> Iterator[tuple[str, list[Sent]]]:
    """A push-gateway or collector: yields its URL and the list of received requests."""
    received: list[Sent] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(Sent(self.command, self.path, self.headers, body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_PUT  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
