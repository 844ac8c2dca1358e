"""Sends what is counted to a push-gateway: for jobs that end before anybody asks them."""

from __future__ import annotations

from collections.abc import Callable
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from firstlight.telemetry.process_values import identity
from firstlight.telemetry.prometheus import CONTENT_TYPE
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.addresses import gateway_url

_TIMEOUT_SECONDS = 2.0


class PushGateway:
    """`push()` replaces what this process has sent before. Down: one warning, asked again."""

    def __init__(self, url: str, text: Callable[[], bytes]) -> None:
        self._gateway, self._text = gateway_url(url), text

    def push(self) -> None:
        # Asked each time: a fork is a process of its own.
        group = zip(("job", "instance"), identity(), strict=True)
        path = "/".join(f"{name}/{quote(value, safe='')}" for name, value in group)
        url = f"{self._gateway}/metrics/{path}"
        request = Request(url, self._text(), {"Content-Type": CONTENT_TYPE}, method="PUT")
        try:
            urlopen(request, timeout=_TIMEOUT_SECONDS).close()
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            say_once("push", f"the push-gateway cannot be reached ({reason}): {url}")
