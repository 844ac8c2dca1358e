"""Text that comes from a program or a file, made safe to print."""

from __future__ import annotations

_STEERING = dict.fromkeys(
    [
        *(n for n in range(32) if chr(n) not in "\n\t"),
        *range(127, 160),  # DEL and the second set of control characters
        *range(0x202A, 0x202F),  # these and the next reverse the direction of what follows
        *range(0x2066, 0x206A),
    ],
    "\ufffd",
)


def printable(text: str) -> str:
    """Nothing that steers a terminal: control characters but newline and tab are replaced."""
    return text.translate(_STEERING)
