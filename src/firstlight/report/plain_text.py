"""Text that comes from a program or a file, made safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """Nothing that steers a terminal: control characters but newline and tab are replaced."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
