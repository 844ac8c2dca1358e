"""Sends what is counted to a push-gateway: for jobs that end before anybody asks them."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote
from urllib.request import Request

from firstlight.telemetry.process_values import identity
from firstlight.telemetry.prometheus import CONTENT_TYPE
from firstlight.telemetry.sending import send
from firstlight.telemetry.watch.addresses import gateway_url


class PushGateway:
    """`push()` replaces what this process has sent before. Down: one warning, asked again."""

    def __init__(self, url: str, text: Callable[[], bytes]) -> None:
        self._gateway, self._text = gateway_url(url), text

    def push(self) -> None:
        # Asked each time: a fork is a process of its own.
        group = zip(("job", "instance"), identity(), strict=True)
        path = "/".join(f"{name}/{quote(value, safe='')}" for name, value in group)
        url = f"{self._gateway}/metrics/{path}"
        headers = {"Content-Type": CONTENT_TYPE}
        send(Request(url, self._text(), headers, method="PUT"), "push-gateway")
