"""Printing lines and tables to the terminal, for all commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from firstlight.present.plain_text import printable


class Terminal(Console):
    """A console; without a terminal (CI, a pipe) its width is fixed."""

    def __init__(self, stderr: bool = False, plain_width: int = 150) -> None:
        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else plain_width
        super().__init__(stderr=stderr, width=width, highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the program with exit code 1

    def say(self, text: str, style: str = "") -> None:
        """Print any text literally."""
        self.print(escape(text), style=style, soft_wrap=True)

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1
    ) -> None:
        """Print a table whose first `texts` columns are text, and the others numbers."""
        self.say(title, "bold")  # a title of the table itself would be folded at its width
        table = Table(box=box.SIMPLE_HEAD)
        for index, name in enumerate(columns):
            is_text = index < texts
            table.add_column(escape(name), justify="left" if is_text else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        self.print(table)


def escape(text: str) -> str:
    """Escape text for the console: no markup, no control characters."""
    return escape_markup(printable(text))
