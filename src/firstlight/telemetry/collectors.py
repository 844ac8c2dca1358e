"""OpenTelemetry collectors: their addresses, and how metrics and spans are sent there.

OTLP over HTTP. Only the messages (opentelemetry-proto) are loaded: importing the SDK with its
exporter would take more than half a second.
"""

from __future__ import annotations

import gzip
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request

from firstlight.telemetry.sending import send
from firstlight.telemetry.warning_line import say_once

_PREFIX = "OTEL_EXPORTER_OTLP_"


class Signal(Enum):
    """What is sent; the value is its name in variables and, in lower case, in URLs."""

    METRICS = "METRICS"
    TRACES = "TRACES"

    def variable(self, name: str, environment: Mapping[str, str]) -> str:
        """The value of an OpenTelemetry variable: that of this signal, or the general one."""
        names = (f"{_PREFIX}{self.value}_{name}", f"{_PREFIX}{name}")
        return next((value for n in names if (value := environment.get(n))), "")

    def url(self, text: str) -> str:
        """The URL for this signal at a collector's address.

        Raises:
            ValueError: The address is not an HTTP URL.
        """
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r} is not the URL of a collector: give http://HOST:4318")
        base, path = text.rstrip("/"), f"/v1/{self.value.lower()}"
        return base if base.endswith(path) else base + path


@dataclass(frozen=True)
class Destination:
    """A collector's URL, and the headers and settings of every message."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    is_compressed: bool = False
    certificate: str | None = None  # file of trusted authorities

    @classmethod
    def at(cls, url: str, environment: Mapping[str, str], signal: Signal) -> Destination:
        """The collector at an address, with settings from OpenTelemetry's variables.

        Raises:
            ValueError: The address is not an HTTP URL.
        """
        return cls(
            signal.url(url),
            tuple(pairs(signal.variable("HEADERS", environment)).items()),
            signal.variable("COMPRESSION", environment) == "gzip",
            signal.variable("CERTIFICATE", environment) or None,
        )

    @classmethod
    def of_variables(cls, environment: Mapping[str, str], signal: Signal) -> Destination | None:
        """The collector named by OpenTelemetry's variables, if any; invalid ones are a warning."""
        if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        url = signal.variable("ENDPOINT", environment)
        if not url or environment.get(f"OTEL_{signal.value}_EXPORTER", "otlp") not in ("otlp", ""):
            return None
        try:
            if signal.variable("PROTOCOL", environment) == "grpc":
                raise ValueError(
                    f"{_PREFIX}PROTOCOL=grpc: {signal.value.lower()} are sent as http/protobuf "
                    "only. Give the collector's HTTP address: --otlp http://HOST:4318"
                )
            made = cls.at(url, environment, signal)
        except ValueError as error:
            say_once("otlp", str(error))
            return None
        exact = environment.get(f"{_PREFIX}{signal.value}_ENDPOINT")
        return replace(made, url=exact) if exact else made

    def send(self, body: bytes) -> bytes | None:
        """Send a message and return the answer; without one None, and one warning per process."""
        headers = {"Content-Type": "application/x-protobuf", **dict(self.headers)}
        if self.is_compressed:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        request = Request(self.url, body, headers, method="POST")
        known = self.certificate
        trusted = None if known is None else ssl.create_default_context(cafile=known)
        return send(request, "collector", trusted)


def add_resource(spans_or_metrics: Any, own: Mapping[str, str]) -> None:
    """Add the attributes of this process to a message; OpenTelemetry's variables override `own`."""
    given = pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := os.environ.get("OTEL_SERVICE_NAME"):
        given["service.name"] = name
    for name, text in {**own, **given}.items():
        spans_or_metrics.resource.attributes.add(key=name).value.string_value = text


def pairs(text: str) -> dict[str, str]:
    """Parse `a=b,c=d`, percent-encoded, the form of OpenTelemetry's variables."""
    split = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in split}
