"""What a run holds of the person who measured, taken out before strangers read it.

Home directories become `~`, passwords in addresses become `***`, and texts that the publisher names
become `(redacted)`. It is done on the bytes of the raw files, so nothing else about them changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: `/home/ann`, `/Users/ann`, `/nfs/home/ann`, `/root`, wherever a path may begin. A name ends at
#: what JSON or a shell would not have in one; `\u00e9` is how JSON writes é.
_HOME = re.compile(
    rb"(?:(?<=file://)|(?<![\w/.~-]))"
    rb"(?:(?:/[\w.-]+){0,8}?/(?:home|users)/(?:\\u[0-9a-f]{4}|[^/\s\"'\\:;,<>()])+|/root(?![\w.-]))",
    re.IGNORECASE,
)
_TEXT_MARK, _PASSWORD_MARK, _HOME_MARK = b"(redacted)", b"***", b"~"
_PASSWORD = re.compile(rb"(?<=://)[^/\s\"'\\@]+(?=@)")


@dataclass(frozen=True)
class Redacted:
    """The bytes that may be published, and how often something was replaced in them."""

    data: bytes
    replacements: int


def redact(data: bytes, texts: Sequence[str] = ()) -> Redacted:
    """Take private paths, passwords and the given texts out of a JSON file."""
    clean = data
    for text in sorted(texts, key=len, reverse=True):  # a text may contain another
        clean = clean.replace(json.dumps(text)[1:-1].encode(), _TEXT_MARK)
    for pattern, mark in ((_PASSWORD, _PASSWORD_MARK), (_HOME, _HOME_MARK)):
        clean = pattern.sub(mark, clean)
    # As many as a reader can find again: a mark may itself be part of what is replaced next.
    return Redacted(clean, max(marks(clean) - marks(data), int(clean != data)))


def marks(data: bytes) -> int:
    """How many marks of redaction are in a file."""
    return sum(data.count(mark) for mark in (_TEXT_MARK, _PASSWORD_MARK, _HOME_MARK))


def private_part(source: bytes, texts: Sequence[str] = ()) -> str | None:
    """What of a program must not be published, in words, or None."""
    for text in texts:
        if text and text.encode() in source:
            return "a text that is to be redacted"
    if _PASSWORD.search(source):
        return "a password in an address"
    home = str(Path.home()).encode()
    if _HOME.search(source) or (len(home) > 1 and home in source):
        return "a home directory"
    return None
