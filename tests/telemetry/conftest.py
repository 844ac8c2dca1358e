"""A watch of this process, asked over HTTP and read by somebody else's parser."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from scraping import Scrape, samples

from firstlight import telemetry
from firstlight.telemetry import warning_line
from firstlight.telemetry.watch.process import ProcessWatch


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warning_line, "_said", set())


@pytest.fixture
def watch() -> Iterator[ProcessWatch]:
    """Looks when it is asked only."""
    yield telemetry.start("127.0.0.1:0", interval_seconds=3600, max_functions=6)
    telemetry.stop()


@pytest.fixture
def value(watch: ProcessWatch) -> Scrape:
    """Of a series, as it is now: `value("steps_total", function="f", result="ok")`."""
    assert watch.server is not None
    url = f"http://127.0.0.1:{watch.server.port}/metrics"

    def read(name: str, **labels: str) -> float:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        return samples(text).get((f"firstlight_{name}", frozenset(labels.items())), 0.0)

    return read
