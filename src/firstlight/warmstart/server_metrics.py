"""What a server has done, in the text format of Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from http import HTTPStatus

_ABOUT = {
    "hits_total": "Entries that were asked for and sent.",
    "misses_total": "Entries that were asked for and not there.",
    "sent_bytes_total": "Bytes of entries sent.",
    "stored_bytes_total": "Bytes of entries received and stored.",
}


class Metrics:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._requests: Counter[tuple[str, int]] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def count(self, method: str | None, status: HTTPStatus) -> None:
        known = method if method in ("GET", "PUT", "POST") else "other"
        with self._lock:
            self._requests[known, int(status)] += 1

    def text(self, entry_bytes: int, leases: int) -> str:
        with self._lock:
            requests, counts = dict(self._requests), dict(self._counts)
        lines = _family("requests_total", "counter", "Requests answered.")
        lines += [
            f'firstlight_cache_requests_total{{method="{method}",status="{status}"}} {count}'
            for (method, status), count in sorted(requests.items())
        ]
        for name, about in _ABOUT.items():
            lines += _family(name, "counter", about)
            lines.append(f"firstlight_cache_{name} {counts.get(name, 0)}")
        for name, value, about in (
            ("entry_bytes", entry_bytes, "Bytes of all entries."),
            ("leases", leases, "Programs that are being compiled somewhere."),
        ):
            lines += [*_family(name, "gauge", about), f"firstlight_cache_{name} {value}"]
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP firstlight_cache_{name} {about}", f"# TYPE firstlight_cache_{name} {kind}"]
