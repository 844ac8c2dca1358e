"""Text that comes from a program or a file, made safe to print."""

from __future__ import annotations

_STEERING = dict.fromkeys(
    [
        *(n for n in range(32) if chr(n) not in "\n\t"),
        *range(127, 160),  # DEL and the second set of control characters
        *range(0x202A, 0x202F),  # these and the next reverse the direction of what follows
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),  # halves of a character: no encoding can write them
    ],
    "\ufffd",
)


def printable(text: str) -> str:
    """Nothing that steers a terminal or cannot be written; newline and tab stay."""
    return text.translate(_STEERING)


def xml_text(value: str) -> str:
    """Only characters that XML 1.0 knows; ElementTree escapes the rest."""
    known = ((0x9, 0xA), (0x20, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF))
    return "".join(
        c if any(low <= ord(c) <= high for low, high in known) else "\ufffd"
        for c in printable(value)
    )
