"""A client of `firstlight cache serve`: short waits, one connection per thread, no redirects."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import threading
import time
from http import HTTPStatus
from urllib.parse import urlsplit

from firstlight.snapshot.trust import config_folder
from firstlight.token_file import TokenError, read_token
from firstlight.warmstart.inventory import Listed
from firstlight.warmstart.sharing.place import (
    MAX_ENTRY_BYTES,
    LeaseState,
    Place,
    PlaceError,
    Trouble,
)

#: Time without a byte: while a program waits, and after an upload. Time for a whole answer.
_SILENCE_SECONDS, _STORING_SECONDS, _ANSWER_SECONDS = 3.0, 30.0, 60.0
_TOKEN, _TOKEN_FILE = "FIRSTLIGHT_CACHE_TOKEN", "FIRSTLIGHT_CACHE_TOKEN_FILE"
_CHUNK_BYTES = 1 << 20
_DENIED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
HOLDER_HEADER = "Firstlight-Holder"


def own_token() -> str:
    """From FIRSTLIGHT_CACHE_TOKEN, FIRSTLIGHT_CACHE_TOKEN_FILE or `cache-token` in the settings."""
    if token := os.environ.get(_TOKEN):
        return token.strip()
    named = os.environ.get(_TOKEN_FILE)
    path = named or str(config_folder() / "cache-token")
    if not named and not os.path.exists(path):
        return ""
    try:
        return read_token(path).decode()
    except OSError as error:
        why = f"{path}: {error.strerror or error}" + (f" ({_TOKEN_FILE})" if named else "")
        raise PlaceError(Trouble.UNUSABLE, why) from None
    except TokenError as error:
        raise PlaceError(Trouble.UNUSABLE, str(error).rstrip(".")) from None


class HttpPlace(Place):
    has_leases = True

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise PlaceError(Trouble.UNUSABLE, str(error)) from None
        if not self._host or parts.username or parts.query:
            raise PlaceError(Trouble.UNUSABLE, "give http(s)://HOST:PORT, and the token in a file")
        if not token.isascii() or not token.isprintable():
            raise PlaceError(Trouble.UNUSABLE, "the token has characters that no header can have")
        self.url = url.rstrip("/")
        self._base = parts.path.rstrip("/")
        # Honours SSL_CERT_FILE, for private certificate authorities.
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._of_thread = threading.local()

    def forget_connections(self) -> None:
        self._of_thread = threading.local()

    def fetch(self, name: str) -> bytes | None:
        status, body = self._ask("GET", f"/v1/entries/{name}")
        return body if status == 200 else None

    def store(self, name: str, entry: bytes) -> None:
        status, body = self._ask("PUT", f"/v1/entries/{name}", entry)
        if status not in (200, 201, 204):
            raise PlaceError(Trouble.REFUSED, body.decode("utf-8", "replace")[:200].strip())

    def lease(self, name: str, action: str, holder: str) -> LeaseState:
        path = f"/v1/leases/{name}/{action}"
        _, body = self._ask("POST", path, b"", {HOLDER_HEADER: holder})
        try:
            return LeaseState(body.decode("ascii"))
        except ValueError:
            return LeaseState.FREE

    def listed(self) -> list[Listed]:
        lines = self.text("/v1/entries").splitlines()
        try:
            return [Listed.from_json(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PlaceError(Trouble.UNUSABLE, "not a Firstlight cache server") from None

    def remove(self, name: str) -> None:
        why = (
            "a server removes entries itself (--max-bytes). On its own machine: firstlight cache "
            "prune FOLDER"
        )
        raise PlaceError(Trouble.REFUSED, why)

    def counts(self) -> dict[str, int]:
        found = re.findall(
            r'^firstlight_cache_server_lookups_total\{result="(\w+)"\} (\d+)\.0$',
            self.text("/metrics"),
            re.M,
        )
        return {result: int(count) for result, count in found}

    def text(self, path: str) -> str:
        """The text at `path`."""
        status, body = self._ask("GET", path)
        if status != 200:
            raise PlaceError(Trouble.REFUSED, f"{path}: answer {status}")
        return body.decode("utf-8", "replace")

    def _ask(
        self, method: str, path: str, body: bytes | None = None, more: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        try:
            return self._asked(method, self._base + path, body, {**self._headers, **(more or {})})
        except (OSError, http.client.HTTPException) as error:
            self._close()
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            why = "no answer in time" if isinstance(error, TimeoutError) else why
            raise PlaceError(Trouble.DOWN, why or type(error).__name__) from None

    def _asked(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        connection, is_new = self._connection()
        try:
            response = _sent(connection, method, path, body, headers)
        except ConnectionError:
            self._close()
            if is_new:
                raise
            # The server closed the idle connection since the last request.
            response = _sent(self._connection()[0], method, path, body, headers)
        content = _read(response)
        if response.will_close:
            self._close()
        if response.status in _DENIED:
            raise PlaceError(Trouble.DENIED, content.decode("utf-8", "replace")[:200].strip())
        if response.status >= 500 and response.status != HTTPStatus.INSUFFICIENT_STORAGE:
            raise PlaceError(Trouble.DOWN, f"answer {response.status}")
        return response.status, content

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        kept: _Kept | None = getattr(self._of_thread, "kept", None)
        if kept is not None:
            return kept.connection, False
        made: http.client.HTTPConnection
        if self._tls is None:
            made = http.client.HTTPConnection(self._host, self._port, timeout=_SILENCE_SECONDS)
        else:
            made = http.client.HTTPSConnection(
                self._host, self._port, timeout=_SILENCE_SECONDS, context=self._tls
            )
        self._of_thread.kept = _Kept(made)
        return made, True

    def _close(self) -> None:
        self._of_thread.kept = None


class _Kept:
    """A connection, closed with its thread: Python warns of sockets that are never closed."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def _sent(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
) -> http.client.HTTPResponse:
    if body is None:
        connection.request(method, path, None, headers)
        return connection.getresponse()
    # In chunks: the time limit applies to each of them, not to the whole body.
    chunks = (body[at : at + _CHUNK_BYTES] for at in range(0, len(body), _CHUNK_BYTES))
    try:
        connection.request(method, path, chunks, {**headers, "Content-Length": str(len(body))})
    except (BrokenPipeError, ConnectionResetError):
        # A server that refuses the body answers, and closes before it has been sent.
        if connection.sock is None:
            raise
    if body:
        connection.sock.settimeout(_STORING_SECONDS)
    response = connection.getresponse()
    if connection.sock is not None:
        connection.sock.settimeout(_SILENCE_SECONDS)
    return response


def _read(response: http.client.HTTPResponse) -> bytes:
    """The body of an answer, unless it is too large or takes too long."""
    end = time.monotonic() + _ANSWER_SECONDS
    chunks, size = [], 0
    while chunk := response.read1(_CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ENTRY_BYTES:
            raise http.client.HTTPException("the answer is too large")
        if time.monotonic() > end:
            raise TimeoutError
    if response.length:  # read1 does not check it
        raise http.client.HTTPException("the answer was cut off")
    response.close()  # nor does read1 close it, so that the connection can be used again
    return b"".join(chunks)
