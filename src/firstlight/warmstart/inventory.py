"""A listing of a cache from the heads of its entries, and which of them to prune."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from firstlight.warmstart.entries import LEASE, UNFINISHED, files_below
from firstlight.warmstart.sealed import MAX_HEAD_BYTES, head

_MAX_TIME = 2.0**36  # seconds; later years have five digits


@dataclass(frozen=True)
class Listed:
    """An entry as its head describes it, unverified.

    path: in its cache. key: empty if the head cannot be read. size: in bytes. used: time of the
    last use, in seconds since 1970. signer: public key; empty if it is not signed.
    """

    path: str
    kind: str
    key: str
    size: int
    used: float
    signer: bytes
    about: dict[str, Any]

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Listed:
        about = plain["about"]
        return cls(
            path=str(plain["path"]),
            kind=str(plain["kind"]),
            key=str(plain["key"]),
            size=int(plain["bytes"]),
            used=min(max(float(plain["used"]), 0.0), time.time()),
            signer=bytes.fromhex(plain["signer"]),
            about=about if isinstance(about, dict) else {},
        )

    def to_json(self) -> dict[str, Any]:
        plain = {**vars(self), "bytes": self.size, "signer": self.signer.hex()}
        del plain["size"]
        return plain

    @property
    def function(self) -> str:
        return str(self.about.get("function") or self.key.rpartition("-")[0] or "?")

    @property
    def signer_id(self) -> str:
        """The signer's id, as `firstlight keys` shows it; empty if it is not signed."""
        return hashlib.sha256(self.signer).hexdigest()[:32] if self.signer else ""

    @property
    def compiled(self) -> float:
        """Time of the compile in seconds since 1970; of the last use if that is not known."""
        found = self.about.get("compiled")
        return (
            float(found) if isinstance(found, int | float) and 0 <= found < _MAX_TIME else self.used
        )


def listed_entry(path: str, beginning: bytes, size: int, used: float) -> Listed:
    """Describe an entry from the first MAX_HEAD_BYTES of its content."""
    found = head(beginning)
    if found is None:
        return Listed(path, path.split("/")[0], "", size, used, b"", {})
    return Listed(path, found.kind, found.key, size, used, found.signer, found.about)


def entries_below(root: str) -> list[Listed]:
    """All entries, for all kinds of machines."""
    found = []
    for path, status in files_below(root):
        if path.endswith((LEASE, UNFINISHED)):
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                beginning = file.read(MAX_HEAD_BYTES)
            name = os.path.relpath(path, root)
            found.append(listed_entry(name, beginning, status.st_size, status.st_mtime))
    return found


def to_prune(
    listed: Iterable[Listed],
    max_bytes: int | None,
    older_than_seconds: float | None,
    is_unwanted: Callable[[Listed], bool],
) -> list[Listed]:
    """Unwanted entries, those unused for too long, then the least recently used beyond a size."""
    now = time.time()
    remaining: list[Listed] = []
    chosen: list[Listed] = []
    for one in sorted(listed, key=lambda one: -one.used):
        is_old = older_than_seconds is not None and now - one.used > older_than_seconds
        (chosen if is_old or is_unwanted(one) else remaining).append(one)
    total = sum(one.size for one in remaining)
    while remaining and max_bytes is not None and total > max_bytes:
        chosen.append(remaining.pop())
        total -= chosen[-1].size
    return chosen
