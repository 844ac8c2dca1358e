"""Questions to a Prometheus server, by its HTTP interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from firstlight.errors import FirstlightError

#: Our own alerts that fire.
FIRING = 'ALERTS{alertstate="firing", alertname=~"Firstlight.*"}'


class PrometheusError(FirstlightError):
    """A Prometheus that cannot be asked, or did not understand the question."""


@dataclass(frozen=True)
class Course:
    """Values of one series over time: (seconds since 1970, value)."""

    labels: dict[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Prometheus:
    """A server at an address such as http://127.0.0.1:9090."""

    url: str
    timeout_seconds: float = 10.0

    def query(self, expression: str) -> list[Course]:
        """What an expression is now."""
        found = self._get("query", query=expression)["result"]
        return [Course(one["metric"], _points([one["value"]])) for one in found]

    def range(self, expression: str, start: float, end: float, step_seconds: float) -> list[Course]:
        """What an expression was between two times."""
        found = self._get("query_range", query=expression, start=start, end=end, step=step_seconds)
        return [Course(one["metric"], _points(one["values"])) for one in found["result"]]

    def firing(self) -> list[dict[str, str]]:
        """Labels of the alerts that fire: of one name, as many as there are processes or models."""
        return [a["labels"] for a in self._get("alerts")["alerts"] if a["state"] == "firing"]

    def rule_names(self) -> list[str]:
        """Of all rules that are loaded."""
        return [rule["name"] for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, what: str, **arguments: object) -> dict[str, Any]:
        address = f"{self.url.rstrip('/')}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(address, timeout=self.timeout_seconds) as answer:
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
