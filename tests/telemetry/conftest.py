"""A watch of this process, scraped over HTTP and read by Prometheus's own parser."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from scraping import Checks, Scrape, everything, samples

from firstlight import telemetry
from firstlight.telemetry import warning_line
from firstlight.telemetry.watch import gradient_checks
from firstlight.telemetry.watch.process import ProcessWatch


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warning_line, "_said", set())


@pytest.fixture
def watch() -> Iterator[ProcessWatch]:
    """A watch that samples only when scraped."""
    yield telemetry.start(
        "127.0.0.1:0", interval_seconds=3600, max_functions=6, gradient_seconds=600
    )
    telemetry.stop()


@pytest.fixture
def value(watch: ProcessWatch) -> Scrape:
    """Reads the current value of a series: `value("steps_total", function="f", result="ok")`."""
    assert watch.server is not None
    url = f"http://127.0.0.1:{watch.server.port}/metrics"

    def read(name: str, **labels: str) -> float:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        return samples(text).get((f"firstlight_{name}", frozenset(labels.items())), 0.0)

    return read


@pytest.fixture
def every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the limits on how often gradients are checked."""
    monkeypatch.setattr(gradient_checks, "_MAX_SHARE", 1e12)
    monkeypatch.setattr(gradient_checks, "_EVERY_SECONDS", 0.0)


@pytest.fixture
def checks(every_call: None, watch: ProcessWatch) -> Checks:
    """Counts of gradient checks by result, or by the reason that there was none."""
    names = ("firstlight_gradient_checks_total", "firstlight_gradients_not_checked_total")

    def count() -> dict[str, float]:
        found = everything(watch).items()
        return {
            dict(labels).popitem()[1]: number for (name, labels), number in found if name in names
        }

    return count
