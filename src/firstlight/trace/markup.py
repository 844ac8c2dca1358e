"""Text of a program as markup: escaped, and without characters that steer what follows."""

from __future__ import annotations

import html

from firstlight.report.plain_text import printable


def escaped(text: str) -> str:
    """Safe as content and within quoted attributes."""
    return html.escape(printable(text))
