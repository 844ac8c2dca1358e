"""What a run holds of the person who measured, taken out before strangers read it.

Home directories become `~`, passwords in addresses become `***`, and texts that the publisher names
become `(redacted)`. It is done on the bytes of the raw files, so nothing else about them changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

#: `/home/ann`, `/Users/ann`, `/nfs/home/ann`, `/root`, wherever a path may begin. A name ends at
#: what JSON or a shell would not have in one; `\u00e9` is how JSON writes é.
_HOME = re.compile(
    rb"(?:(?<=file://)|(?<![\w/.~-]))"
    rb"(?:(?:/[\w.-]+){0,8}?/(?:home|users)/(?:\\u[0-9a-f]{4}|[^/\s\"'\\:;,<>()])+|/root(?![\w.-]))",
    re.IGNORECASE,
)
_PASSWORD = re.compile(rb"(?<=://)[^/\s\"'\\@]+(?=@)")


@dataclass(frozen=True)
class Redacted:
    """The bytes that may be published, and how often something was replaced in them."""

    data: bytes
    replacements: int


def redact(data: bytes, texts: Sequence[str] = ()) -> Redacted:
    """Take private paths, passwords and the given texts out of a JSON file."""
    total = 0
    for text in sorted(texts, key=len, reverse=True):  # a text may contain another
        escaped = json.dumps(text)[1:-1].encode()
        total += data.count(escaped)
        data = data.replace(escaped, b"(redacted)")
    for pattern, mark in ((_PASSWORD, b"***"), (_HOME, b"~")):
        data, count = pattern.subn(mark, data)
        total += count
    return Redacted(data, total)
