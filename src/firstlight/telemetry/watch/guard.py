"""What goes wrong in a watch must not reach the program; it is said once, on stderr."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from firstlight.trace.record.program_errors import pass_on

_said: set[str] = set()


def say_once(about: str, text: str) -> None:
    """Write a line on stderr, one per process for each thing that it is about."""
    if about in _said:
        return
    _said.add(about)
    with suppress(OSError):  # closed
        os.write(2, f"firstlight: {text}\n".encode("utf-8", "replace"))


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
