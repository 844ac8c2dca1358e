"""The target of a load: an address that may be loaded, and a valid request for its server."""

from __future__ import annotations

import http.client
import ipaddress
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from firstlight.errors import FirstlightError

_EXAMPLE = {"BOOL": True, "BYTES": "x"}
_SECONDS = 30.0


class TargetError(FirstlightError):
    """An address that is not allowed, or a server that cannot be reached."""


@dataclass(frozen=True)
class Target:
    """A server's address, and the request to send."""

    host: str
    port: int
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def request(self) -> bytes:
        """The bytes of the whole request."""
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def target_of(
    url: str, allowed_host: str | None = None, body: bytes | None = None, token: str | None = None
) -> Target:
    """Parse a URL; without a body, make an example from the server's metadata.

    Only this machine is allowed, unless `allowed_host` names another one.
    """
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise TargetError(f"{url}: give a URL such as http://127.0.0.1:8000/models/NAME.")
    host, port = parts.hostname, parts.port or 80
    if not _is_loopback(host) and host != allowed_host:
        raise TargetError(
            f"{host} is not this machine. To send load there, with its owner's consent, name it: "
            f"--allow-host {host}"
        )
    headers = (("Authorization", f"Bearer {token}"),) if token else ()
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    if body is None:
        path, body = _example(host, port, path, dict(headers))
    return Target(host, port, path or "/", body, headers)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _example(host: str, port: int, path: str, headers: dict[str, str]) -> tuple[str, bytes]:
    """The path of plain JSON and a row for it, from the metadata of a Firstlight server."""
    name = path.strip("/").removeprefix("models/")
    if not name:
        models = _asked(host, port, "/v2/models", headers)
        name = models[0]["name"] if models else ""
    about = _asked(host, port, f"/v2/models/{name}", headers)
    row = {
        tensor["name"]: _ones(tensor["shape"], _EXAMPLE.get(tensor["datatype"], 1))
        for tensor in about["inputs"]
    }
    return f"/models/{name}", json.dumps(row).encode()


def _ones(shape: list[int], value: Any) -> Any:
    for size in reversed(shape):
        value = [value] * max(size, 1)
    return value


def _asked(host: str, port: int, path: str, headers: dict[str, str]) -> Any:
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        data = answer.read(2**24)
    except (OSError, http.client.HTTPException) as error:
        raise TargetError(f"{host}:{port} does not answer: {error}.") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise TargetError(
            f"{host}:{port}{path} answers {answer.status}. Give the whole address and --body FILE, "
            "or the address of a Firstlight server."
        )
    return json.loads(data)
