"""Queries to a Prometheus server through its HTTP API."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from firstlight.errors import FirstlightError

#: Firing alerts of ours.
FIRING = 'ALERTS{alertstate="firing", alertname=~"Firstlight.*"}'
_TIMEOUT_SECONDS = 10.0


class PrometheusError(FirstlightError):
    """Prometheus does not answer, or rejects the query."""


@dataclass(frozen=True)
class TimeSeries:
    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]  # (seconds since 1970, value)


@dataclass(frozen=True)
class Prometheus:
    url: str  # such as http://127.0.0.1:9090

    def query(self, expression: str) -> list[TimeSeries]:
        """The current value of an expression."""
        found = self._get("query", query=expression)["result"]
        return [TimeSeries(one["metric"], _points([one["value"]])) for one in found]

    def range(
        self, expression: str, start: float, end: float, step_seconds: float
    ) -> list[TimeSeries]:
        """The values of an expression between two times."""
        found = self._get("query_range", query=expression, start=start, end=end, step=step_seconds)
        return [TimeSeries(one["metric"], _points(one["values"])) for one in found["result"]]

    def firing(self) -> list[dict[str, str]]:
        """Labels of every firing alert; one name may occur once per process or model."""
        return [a["labels"] for a in self._get("alerts")["alerts"] if a["state"] == "firing"]

    def rule_names(self) -> list[str]:
        return [rule["name"] for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **arguments: object) -> dict[str, Any]:
        address = f"{self.url.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as answer:
                content: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            why = error.read(2000).decode("utf-8", "replace")
            raise PrometheusError(f"{self.url} refused {arguments}: {why}") from None
        except (OSError, ValueError) as error:
            raise PrometheusError(
                f"no Prometheus answers at {self.url}: {error}. Give its address with --prometheus."
            ) from None
        data: dict[str, Any] = content["data"]
        return data


def _points(values: list[list[Any]]) -> tuple[tuple[float, float], ...]:
    numbers = [(float(time), float(value)) for time, value in values]
    return tuple((time, value) for time, value in numbers if value == value)  # without NaN
