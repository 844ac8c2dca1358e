"""Serves metrics to Prometheus, and profiles to clients with the token, from a thread."""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from firstlight.telemetry.prometheus import CONTENT_TYPE
from firstlight.telemetry.watch.addresses import Address
from firstlight.telemetry.watch.profiles import BusyError

_MAX_PROFILE_SECONDS = 60.0
#: After which a silent connection is closed.
_TIMEOUT_SECONDS = 10


class MetricsServer:
    """Serves until `close()`. OSError: No port is free, or the host is not this machine's."""

    def __init__(
        self,
        address: Address,
        text: Callable[[], bytes],
        profile: Callable[[float], Any],
        token: bytes | None,
    ) -> None:
        self._server = _bound(address)
        self._server.text, self._server.profile, self._server.token = text, profile, token
        self.host, self.port = address.host, int(self._server.server_address[1])
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="firstlight metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with suppress(OSError):  # wakes the thread
            socket.create_connection((self.host, self.port), timeout=1).close()
        self._thread.join(1)
        self._server.server_close()

    def _run(self) -> None:
        while not self._closing:
            self._server.handle_request()

    def close_after_fork(self) -> None:
        """Close the socket in a forked process, which does not have the thread."""
        self._server.socket.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    text: Callable[[], bytes]
    profile: Callable[[float], Any]
    token: bytes | None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing on the program's stderr about clients that left."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _bound(address: Address) -> _Server:
    """A server at the first free port."""
    kind = _Server6 if ":" in address.host else _Server
    failed: OSError | None = None
    for port in address.ports:
        try:
            return kind((address.host, port), _Handler)
        except OSError as error:
            failed = error
    assert failed is not None
    raise failed


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_SECONDS
    server_version = "firstlight"
    sys_version = ""

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/metrics":
            self._answer(200, self.server.text(), CONTENT_TYPE)
        else:
            self._say(404, "not found; there is /metrics")

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        if url.path != "/debug/profile":
            return self._say(404, "not found; there is POST /debug/profile?seconds=5")
        refused = self._refused()
        if refused is not None:
            return self._say(*refused)
        try:
            seconds = float(parse_qs(url.query).get("seconds", ["5"])[0])
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= _MAX_PROFILE_SECONDS:
            return self._say(400, f"seconds: give more than 0, at most {_MAX_PROFILE_SECONDS:g}")
        try:
            self._answer(200, json.dumps(self.server.profile(seconds)).encode(), "application/json")
        except BusyError as error:
            self._say(409, str(error))
        except Exception as error:  # the profiler's own
            self._say(500, f"no profile: {type(error).__name__}: {error}")

    def _refused(self) -> tuple[int, str] | None:
        if self.server.token is None:
            return 403, "profiles are off: start with a token file (--token-file FILE)"
        given = (self.headers.get("Authorization") or "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, b"Bearer " + self.server.token):
            return 401, "send the header Authorization: Bearer TOKEN"
        return None

    def _say(self, code: int, text: str) -> None:
        self._answer(code, (text + "\n").encode(), "text/plain; charset=utf-8")

    def _answer(self, code: int, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing on the program's stderr."""
