"""Makes text from a program or a file safe to print and to put into markup."""

from __future__ import annotations

import html
import re

_UNPRINTABLE = dict.fromkeys(
    [
        *(n for n in range(32) if chr(n) not in "\n\t"),
        *range(127, 160),  # DEL and the C1 control characters
        *range(0x202A, 0x202F),  # bidirectional overrides
        *range(0x2066, 0x206A),  # bidirectional isolates
        *range(0xD800, 0xE000),  # surrogates, which cannot be encoded
    ],
    "\ufffd",
)
_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """Replace characters that control a terminal or cannot be encoded; newline and tab stay."""
    return text.translate(_UNPRINTABLE)


def xml_text(value: str) -> str:
    """Replace characters that XML 1.0 does not allow; escaping is left to ElementTree."""
    return _NOT_IN_XML.sub("\ufffd", printable(value))


def escaped(text: str) -> str:
    """Escape for markup, including quoted attributes."""
    return html.escape(printable(text))


def breakable(text: str) -> str:
    """Like `escaped`, with optional line breaks within names and paths, for narrow columns."""
    return re.sub(r"(/|_|&gt;\.)(?=\w)", r"\1<wbr>", escaped(text))
