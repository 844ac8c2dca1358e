"""A message to a push-gateway or a collector, of a process that belongs to somebody else."""

from __future__ import annotations

import ssl
from urllib.error import URLError
from urllib.request import Request, urlopen

from firstlight.telemetry.warning_line import say_once

#: A program that ends is not held up for longer.
_TIMEOUT_SECONDS = 2.0


def send(request: Request, whom: str, trusted: ssl.SSLContext | None = None) -> bytes | None:
    """The answer; None and, once per process, a line on stderr if there is none."""
    try:
        with urlopen(request, timeout=_TIMEOUT_SECONDS, context=trusted) as answer:
            body: bytes = answer.read()
            return body
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        say_once(whom, f"the {whom} cannot be reached ({reason}): {request.full_url}")
        return None
