"""A collector of OpenTelemetry: where it listens, and how metrics and spans are sent to it.

OTLP over HTTP. Only the messages (opentelemetry-proto) are loaded: the SDK with its exporter would
cost the program more than half a second of imports.
"""

from __future__ import annotations

import gzip
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import unquote, urlsplit
from urllib.request import Request

from firstlight.telemetry.sending import send
from firstlight.telemetry.warning_line import say_once

_PREFIX = "OTEL_EXPORTER_OTLP_"


class Signal(Enum):
    """What is sent; the value is its name in variables and, in small letters, in addresses."""

    METRICS = "METRICS"
    TRACES = "TRACES"

    def said(self, name: str, environment: Mapping[str, str]) -> str:
        """By one of OpenTelemetry's variables: that for this signal, or that for everything."""
        names = (f"{_PREFIX}{self.value}_{name}", f"{_PREFIX}{name}")
        return next((value for n in names if (value := environment.get(n))), "")

    def url(self, text: str) -> str:
        """Where the collector at this address takes them.

        Raises:
            ValueError: An address that is none.
        """
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{text!r} is not the URL of a collector: give http://HOST:4318")
        base, path = text.rstrip("/"), f"/v1/{self.value.lower()}"
        return base if base.endswith(path) else base + path


@dataclass(frozen=True)
class Destination:
    """Where a collector listens, and what it wants to be told with every message."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    is_compressed: bool = False
    certificate: str | None = None  # file of the authorities that are trusted

    @classmethod
    def at(cls, url: str, environment: Mapping[str, str], signal: Signal) -> Destination:
        """The collector at an address, and what OpenTelemetry's variables say of it.

        Raises:
            ValueError: An address that is none.
        """
        return cls(
            signal.url(url),
            tuple(pairs(signal.said("HEADERS", environment)).items()),
            signal.said("COMPRESSION", environment) == "gzip",
            signal.said("CERTIFICATE", environment) or None,
        )

    @classmethod
    def of_variables(cls, environment: Mapping[str, str], signal: Signal) -> Destination | None:
        """The collector that OpenTelemetry's variables name, if they do; what is wrong is said."""
        if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return None
        url = signal.said("ENDPOINT", environment)
        if not url or environment.get(f"OTEL_{signal.value}_EXPORTER", "otlp") not in ("otlp", ""):
            return None
        try:
            if signal.said("PROTOCOL", environment) == "grpc":
                raise ValueError(
                    f"{_PREFIX}PROTOCOL=grpc: {signal.value.lower()} are sent as http/protobuf "
                    "only. Give the collector's address for HTTP: --otlp http://HOST:4318"
                )
            made = cls.at(url, environment, signal)
        except ValueError as error:
            say_once("otlp", str(error))
            return None
        exact = environment.get(f"{_PREFIX}{signal.value}_ENDPOINT")
        return replace(made, url=exact) if exact else made

    def send(self, body: bytes) -> bytes | None:
        """What it answers; None and, once per process, a line on stderr if it does not."""
        headers = {"Content-Type": "application/x-protobuf", **dict(self.headers)}
        if self.is_compressed:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        request = Request(self.url, body, headers, method="POST")
        known = self.certificate
        trusted = None if known is None else ssl.create_default_context(cafile=known)
        return send(request, "collector", trusted)


def resource(own: Mapping[str, str]) -> dict[str, str]:
    """Which process this is. What OpenTelemetry's variables say comes first."""
    said = pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := os.environ.get("OTEL_SERVICE_NAME"):
        said["service.name"] = name
    return {**own, **said}


def pairs(text: str) -> dict[str, str]:
    """`a=b,c=d` with percent signs, as OpenTelemetry's variables are written."""
    split = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in split}
