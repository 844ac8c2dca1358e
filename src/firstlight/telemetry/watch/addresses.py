"""Addresses where metrics are served, and where they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Address:
    """Where to serve: the first free port of a range."""

    host: str
    first_port: int
    last_port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse `HOST:PORT` or `HOST:FIRST-LAST`; without a host, this machine only."""
        host, _, ports = text.rpartition(":")
        first, _, last = ports.partition("-")
        numbers = [int(n) if n.isascii() and n.isdigit() else -1 for n in (first, last or first)]
        if not 0 <= numbers[0] <= numbers[1] <= 65535:
            raise ValueError(
                f"{text!r} is not an address: give HOST:PORT or HOST:FIRST-LAST, "
                "for example 127.0.0.1:9464"
            )
        return cls(host.strip("[]") or "127.0.0.1", *numbers)

    @property
    def ports(self) -> range:
        return range(self.first_port, self.last_port + 1)

    def __str__(self) -> str:
        last = f"-{self.last_port}" if len(self.ports) > 1 else ""
        return f"{self.host}:{self.first_port}{last}"


def gateway_url(text: str) -> str:
    """Check the URL of a push-gateway."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not the URL of a push-gateway: give http://HOST:9091")
    return text.rstrip("/")
