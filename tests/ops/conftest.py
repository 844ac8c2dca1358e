"""The real programs of Prometheus."""

from __future__ import annotations

import shutil

import pytest


def _program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(names)} on the PATH: run tools/install-prometheus.sh")
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    return _program("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    return _program("prometheus")


@pytest.fixture(scope="session")
def alertmanager() -> str:
    return _program("prometheus-alertmanager", "alertmanager")
