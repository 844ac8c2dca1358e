"""Text of a program as markup: escaped, and without characters that steer what follows."""

from __future__ import annotations

import html
import re

from firstlight.present.plain_text import printable


def escaped(text: str) -> str:
    """Safe as content and within quoted attributes."""
    return html.escape(printable(text))


def breakable(text: str) -> str:
    """The same for a narrow column: a line may end after the parts of a name or a path."""
    return re.sub(r"(/|_|&gt;\.)(?=\w)", r"\1<wbr>", escaped(text))
