"""Keeps errors of the watch from the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstlight.telemetry.warning_line import say_once
from firstlight.trace.record.program_errors import pass_on


def guarded(action: Callable[..., None]) -> Callable[..., None]:
    """`action`, with its exceptions reported on stderr instead of raised."""

    def call(*arguments: Any, **named: Any) -> None:
        try:
            action(*arguments, **named)
        except Exception as error:
            say_failed(error)

    return call


def say_failed(error: Exception) -> None:
    """Report an error of our own; one raised by the program's signal handler is passed on."""
    pass_on(error)
    text = f"{type(error).__name__}: {error}"[:300]
    say_once(text, f"telemetry: {text}")
