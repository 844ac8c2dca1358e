"""The terminal: what every command prints tables and marked-up lines with."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.markup import escape as escape_markup

from firstlight.present.plain_text import printable


class Terminal(Console):
    """rich would end the program with exit code 1 when its reader goes away (`| head`)."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def escape(text: str) -> str:
    """Text from a program or a file: no markup, and nothing that steers the terminal."""
    return escape_markup(printable(text))


def output_width() -> int | None:
    """Without a terminal (CI, a pipe) wide enough that nothing is cut."""
    return None if sys.stdout.isatty() else 150
