"""Fresh metrics and a fresh watch of compiles for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from firstlight.serve.compile_watch import CompileWatch
from firstlight.telemetry.values import Values


@pytest.fixture
def values() -> Values:
    return Values()


@pytest.fixture
def watch(values: Values) -> Iterator[CompileWatch]:
    made = CompileWatch(values)
    yield made
    made.close()
