"""What goes wrong in a watch must not reach the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstlight.telemetry.warning_line import say_once
from firstlight.trace.record.program_errors import pass_on


def guarded(action: Callable[..., None]) -> Callable[..., None]:
    """The same, and an error of it is a line on stderr."""

    def call(*arguments: Any, **named: Any) -> None:
        try:
            action(*arguments, **named)
        except Exception as error:
            say_failed(error)

    return call


def say_failed(error: Exception) -> None:
    """An error in our own code; one of a handler of a signal, the program's own, is passed on."""
    pass_on(error)
    text = f"{type(error).__name__}: {error}"[:300]
    say_once(text, f"telemetry: {text}")
