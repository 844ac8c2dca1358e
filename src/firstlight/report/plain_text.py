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
