"""Text that comes from a program or a file, made safe to print and to put into markup."""

from __future__ import annotations

import html
import re

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
_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """Nothing that steers a terminal or cannot be written; newline and tab stay."""
    return text.translate(_STEERING)


def xml_text(value: str) -> str:
    """Only characters that XML 1.0 knows; ElementTree escapes the rest."""
    return _NOT_IN_XML.sub("\ufffd", printable(value))


def escaped(text: str) -> str:
    """Safe as content of markup and within quoted attributes."""
    return html.escape(printable(text))


def breakable(text: str) -> str:
    """The same for a narrow column: a line may end after the parts of a name or a path."""
    return re.sub(r"(/|_|&gt;\.)(?=\w)", r"\1<wbr>", escaped(text))
