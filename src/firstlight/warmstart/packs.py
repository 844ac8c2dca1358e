"""Packs: compiled programs in one signed file, to be carried into an image or to another site.

A pack is itself an entry, whose value is a list of entries, each preceded by its length. So one
signature covers them all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.warmstart import sealed
from firstlight.warmstart.entries import Entries
from firstlight.warmstart.signing import Signatures, Verdict, what_to_do
from firstlight.whole_files import write_bytes

_KIND, _KEY = "pack", "firstlight pack 1"
_LENGTH_BYTES = 8
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")


class PackError(FirstlightError):
    """A pack cannot be written or unpacked."""


def pack(path: Path, contents: list[bytes], signatures: Signatures) -> None:
    """Write entries to a file, replacing it atomically."""
    if signatures.own is None:
        raise PackError("a pack has to be signed. Make a key first: firstlight keys generate")
    body = b"".join(len(one).to_bytes(_LENGTH_BYTES, "big") + one for one in contents)
    about = json.dumps({"entries": len(contents)}).encode()
    write_bytes(path, signatures.sign(sealed.seal(_KIND, _KEY, body, about)))


def unpack(path: Path, root: str, max_bytes: int, signatures: Signatures) -> int:
    """Store all entries of a pack and return their number; none if no trusted key signed it."""
    whole = path.read_bytes()
    verdict = signatures.verdict(whole)
    if verdict is not Verdict.TRUSTED:
        raise PackError(f"{path}: not unpacked: {verdict.value}.{what_to_do(verdict, whole)}")
    body = sealed.value_of(whole, _KIND, _KEY)
    if body is None:
        raise PackError(f"{path}: an entry of a cache, not a pack.")
    entries = list(_entries(body, path))
    for head, entry in entries:
        Entries(root, head.kind, max_bytes).keep(head.key, entry)
    return len(entries)


def _entries(body: bytes, path: Path) -> Iterator[tuple[sealed.Head, bytes]]:
    at = 0
    while at < len(body):
        length = int.from_bytes(body[at : at + _LENGTH_BYTES], "big")
        entry = body[at + _LENGTH_BYTES : at + _LENGTH_BYTES + length]
        head = sealed.head(entry[: sealed.MAX_HEAD_BYTES])
        if head is None or not _FOLDER.fullmatch(head.kind) or not sealed.is_whole(entry):
            raise PackError(f"{path}: part of it is not an entry; nothing was unpacked.")
        yield head, entry
        at += _LENGTH_BYTES + length
