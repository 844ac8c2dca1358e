"""Warnings on stderr, each once per process, since the process is the user's program."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firstlight.telemetry.metrics import Metric

_said: set[str] = set()


def say_once(about: str, text: str) -> None:
    """Write a line on stderr, unless one with the same `about` was written before."""
    if about in _said:
        return
    _said.add(about)
    with suppress(OSError):  # closed
        os.write(2, f"firstlight: {text}\n".encode("utf-8", "replace"))


def say_unknown(metric: Metric) -> None:
    """Warn that a metric is not exported."""
    say_once(metric.name, f"{metric.name} is not in the catalogue and is not exported")
