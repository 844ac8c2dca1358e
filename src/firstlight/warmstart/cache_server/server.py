"""`firstlight cache serve`: entries and leases over HTTP, for machines that compile the same.

    GET, PUT  /v1/entries/KIND/NAME           an entry
    GET       /v1/entries                     the heads of all entries, one line of JSON each
    POST      /v1/leases/KIND/NAME/ACTION     look, take, renew, release
    GET       /health, /metrics

The server reads only the head of an entry and executes nothing. Write access to it does not let
anyone run code elsewhere: readers check signatures themselves.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from shutil import copyfileobj
from socketserver import TCPServer
from typing import Any

from firstlight.telemetry import metrics
from firstlight.telemetry.prometheus import Exporter
from firstlight.telemetry.values import Values
from firstlight.warmstart.cache_server.lease_book import LeaseBook
from firstlight.warmstart.cache_server.served_entries import Refusal, ServedEntries
from firstlight.warmstart.inventory import entries_below
from firstlight.warmstart.sharing.http_place import HOLDER_HEADER

_ENTRY = re.compile(r"/v1/entries/([A-Za-z0-9_+-][A-Za-z0-9._+-]{0,199}/[0-9a-f]{2}/[0-9a-f]{62})")
_LEASE = re.compile(_ENTRY.pattern.replace("entries", "leases", 1) + "/([a-z]+)")
_HOLDER = re.compile(r"[0-9a-f]{0,64}")
_SILENCE_SECONDS = 10.0
#: For a whole request, even if its client keeps sending or reading.
_REQUEST_SECONDS = 120.0
_PATIENCE_SECONDS = 1.0
_MAX_CONNECTIONS, _MAX_UPLOADS = 4096, 8
_CHUNK_BYTES = 1 << 20
_STATUS_OF = {
    Refusal.TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Refusal.NOT_AN_ENTRY: HTTPStatus.UNPROCESSABLE_ENTITY,
    Refusal.NOT_TRUSTED: HTTPStatus.UNPROCESSABLE_ENTITY,
    Refusal.NO_ROOM: HTTPStatus.INSUFFICIENT_STORAGE,
}


class Access(IntEnum):
    NONE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Tokens:
    """Without any token, everything is allowed: for servers that only their machine can reach."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def access(self, token: str) -> Access:
        """What a token allows, in a time that reveals nothing about the known ones."""
        if not self.read and not self.write:
            return Access.WRITE
        given = token.encode("utf-8", "replace")
        may_write = [hmac.compare_digest(given, known.encode()) for known in self.write]
        may_read = [hmac.compare_digest(given, known.encode()) for known in self.read]
        return Access.WRITE if any(may_write) else Access.READ if any(may_read) else Access.NONE


class CacheServer(ThreadingHTTPServer):
    """address: host and port. tls: None for plain HTTP."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(
        self,
        address: tuple[str, int],
        entries: ServedEntries,
        tokens: Tokens,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        self.entries, self.tokens = entries, tokens
        self.leases = LeaseBook(entries.is_stored)
        self._values = self._first_values()
        self.exporter = Exporter(self._values)
        self.uploads = threading.BoundedSemaphore(_MAX_UPLOADS)
        self._tls = tls
        self._lock = threading.Lock()
        self._ends: dict[socket.socket, float] = {}

    def _first_values(self) -> Values:
        values, entries = Values(), self.entries
        values.gauge(metrics.CACHE_SERVER_STORED, lambda: entries.bytes)
        values.gauge(metrics.CACHE_SERVER_LIMIT, lambda: entries.max_bytes)
        values.gauge(metrics.CACHE_SERVER_LEASES, self.leases.count)
        for result in ("hit", "miss"):
            values.counter(metrics.CACHE_SERVER_LOOKUPS, result)
        return values

    def count(self, metric: metrics.Metric, *labels: str, amount: int = 1) -> None:
        with self._lock:  # many threads count
            self._values.counter(metric, *labels).add(amount)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"{'https' if self._tls else 'http'}://{name}:{port}"

    def server_bind(self) -> None:
        # HTTPServer's looks up the host's name, which may take long.
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        connection.settimeout(_SILENCE_SECONDS)
        if self._tls is not None:
            # The connection's own thread does the handshake, so a silent client delays no other.
            connection = self._tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address

    def verify_request(self, request: Any, client_address: object) -> bool:
        with self._lock:
            if len(self._ends) >= _MAX_CONNECTIONS:
                return False
            self._ends[request] = time.monotonic() + _REQUEST_SECONDS
        return True

    def restart_deadline(self, connection: socket.socket) -> None:
        """Called when a connection begins to wait for a request."""
        with self._lock:
            self._ends[connection] = time.monotonic() + _REQUEST_SECONDS

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second: end connections whose request takes too long."""
        with self._lock:
            late = [c for c, end in self._ends.items() if end < time.monotonic()]
        for connection in late:
            with suppress(OSError):
                # The plain socket's method: that of TLS would interfere with the thread using it.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away or do not speak TLS."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: CacheServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "firstlight", ""
    disable_nagle_algorithm = True
    timeout = _SILENCE_SECONDS

    def do_GET(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self._answer(HTTPStatus.BAD_REQUEST, b"GET takes no body\n")
        elif self.path == "/health":
            self._answer(HTTPStatus.OK, b"ok\n")
        elif not self._may(Access.READ):
            return
        elif self.path == "/metrics":
            self._answer(HTTPStatus.OK, self.server.exporter.text())
        elif self.path == "/v1/entries":
            self._answer(HTTPStatus.OK, _heads(self.server.entries.root))
        elif found := _ENTRY.fullmatch(self.path):
            self._send_entry(found[1])
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such page\n")

    def do_PUT(self) -> None:
        found = _ENTRY.fullmatch(self.path)
        length = self.headers.get("Content-Length", "")
        if not self._may(Access.WRITE):
            return
        if found is None or not length.isdecimal() or "Transfer-Encoding" in self.headers:
            self._answer(HTTPStatus.BAD_REQUEST, b"give KIND/NAME and a Content-Length\n")
        elif int(length) > self.server.entries.max_entry_bytes:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"the entry is too large\n")
        else:
            with self.server.uploads:
                self._store(found[1], int(length))

    def do_POST(self) -> None:
        found = _LEASE.fullmatch(self.path)
        holder = self.headers.get(HOLDER_HEADER, "")
        wanted = Access.READ if found and found[2] == "look" else Access.WRITE
        if not self._may(wanted):
            return
        state = None
        if found and _HOLDER.fullmatch(holder) and self.headers.get("Content-Length") == "0":
            # The server waits for a held lease, so that clients learn of its end early.
            state = self.server.leases.act(found[1], found[2], holder, _PATIENCE_SECONDS)
        if state is None:
            self._answer(HTTPStatus.BAD_REQUEST, b"give look, take, renew or release\n")
        else:
            self._answer(HTTPStatus.OK, state.value.encode())

    def handle_one_request(self) -> None:
        self.server.restart_deadline(self.connection)
        super().handle_one_request()

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are counted, not logged."""

    def _may(self, wanted: Access) -> bool:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        granted = self.server.tokens.access(token if scheme.lower() == "bearer" else "")
        if granted >= wanted:
            return True
        why = "this token may only read" if granted else "the token is missing or unknown"
        status = HTTPStatus.FORBIDDEN if granted else HTTPStatus.UNAUTHORIZED
        self._answer(status, f"{why}\n".encode())
        return False

    def _store(self, name: str, length: int) -> None:
        entry = self.rfile.read(length)
        if len(entry) < length:
            raise ConnectionError
        refusal = self.server.entries.store(name, entry)
        if refusal is None:
            self.server.count(metrics.CACHE_SERVER_RECEIVED, amount=len(entry))
            self._answer(HTTPStatus.CREATED, b"")
        else:
            self._answer(_STATUS_OF[refusal], f"{refusal.value}\n".encode())

    def _send_entry(self, name: str) -> None:
        file = self.server.entries.open(name)
        if file is None:
            self.server.count(metrics.CACHE_SERVER_LOOKUPS, "miss")
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such entry\n")
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self.server.count(metrics.CACHE_SERVER_LOOKUPS, "hit")
            self.server.count(metrics.CACHE_SERVER_SENT, amount=size)
            self._begin(HTTPStatus.OK, size)
            copyfileobj(file, self.wfile, _CHUNK_BYTES)

    def _begin(self, status: HTTPStatus, size: int) -> None:
        method = self.command if self.command in ("GET", "PUT", "POST") else "other"
        self.server.count(metrics.CACHE_SERVER_REQUESTS, method, str(int(status)))
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.send_header("Content-Type", "application/octet-stream" if size else "text/plain")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status >= 400 and self.command in ("PUT", "POST"):
            self.close_connection = True  # the body may not have been read
            self.send_header("Connection", "close")
        self.end_headers()

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self._begin(status, len(body))
        self.wfile.write(body)


def _heads(root: str) -> bytes:
    return b"".join(json.dumps(one.to_json()).encode() + b"\n" for one in entries_below(root))
