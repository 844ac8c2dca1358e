"""The terminal: what every command prints lines and tables with."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from firstlight.present.plain_text import printable


class Terminal(Console):
    """Without a terminal (CI, a pipe) of a fixed width; quiet when its reader goes away."""

    def __init__(self, stderr: bool = False, plain_width: int = 150) -> None:
        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else plain_width
        super().__init__(stderr=stderr, width=width, highlight=False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the program with exit code 1

    def say(self, text: str, style: str = "") -> None:
        """Text from anywhere, as it is."""
        self.print(escape(text), style=style, soft_wrap=True)

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1
    ) -> None:
        """A table whose first `texts` columns are text, and the others numbers."""
        self.say(title, "bold")  # not the table's own: that one is folded at the table's width
        table = Table(box=box.SIMPLE_HEAD)
        for index, name in enumerate(columns):
            is_text = index < texts
            table.add_column(escape(name), justify="left" if is_text else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        self.print(table)


def escape(text: str) -> str:
    """Text from a program or a file: no markup, and nothing that steers the terminal."""
    return escape_markup(printable(text))
