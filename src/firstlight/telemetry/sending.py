"""Sends messages to a collector or a push-gateway, without disturbing the program."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from firstlight.telemetry.process_values import identity
from firstlight.telemetry.prometheus import CONTENT_TYPE
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.addresses import gateway_url

#: Short, since a message is also sent when the program ends.
_TIMEOUT_SECONDS = 2.0


def send(request: Request, whom: str, trusted: ssl.SSLContext | None = None) -> bytes | None:
    """Send a request and return the answer; without one None, and one warning per process."""
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS, context=trusted) as answer:
            body: bytes = answer.read()
            return body
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        say_once(whom, f"the {whom} cannot be reached ({reason}): {request.full_url}")
        return None


class PushGateway:
    """`push()` replaces what this process has sent before; for jobs too short to be scraped."""

    def __init__(self, url: str, text: Callable[[], bytes]) -> None:
        self._gateway, self._text = gateway_url(url), text

    def push(self) -> None:
        # Not cached: a fork has another identity.
        group = zip(("job", "instance"), identity(), strict=True)
        path = "/".join(f"{name}/{quote(value, safe='')}" for name, value in group)
        url = f"{self._gateway}/metrics/{path}"
        headers = {"Content-Type": CONTENT_TYPE}
        send(Request(url, self._text(), headers, method="PUT"), "push-gateway")
