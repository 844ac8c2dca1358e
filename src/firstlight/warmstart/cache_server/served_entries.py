"""The entries of a server: signed, within a bound, the least recently used evicted first."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import IO

from firstlight.warmstart.entries import Entries, files_below, name_of
from firstlight.warmstart.sealed import MAX_HEAD_BYTES, head
from firstlight.warmstart.signing import Verdict, checked_signature


class Refusal(Enum):
    """Why an entry is not stored."""

    TOO_LARGE = "the entry is too large"
    NOT_AN_ENTRY = "not an entry of this name, or it was damaged on its way"
    NOT_TRUSTED = "not signed, or by a key that this server does not trust"
    NO_ROOM = "the server has no room"


class ServedEntries:
    """root: a folder for the server only. verdict: judges the signature of an entry."""

    def __init__(
        self,
        root: str,
        max_bytes: int,
        max_entry_bytes: int,
        verdict: Callable[[bytes], Verdict] = checked_signature,
    ) -> None:
        self.root = root
        self.max_entry_bytes = min(max_entry_bytes, max_bytes)
        self.bytes = sum(status.st_size for _, status in files_below(root))
        self.max_bytes = max_bytes
        self._verdict = verdict
        self._lock = threading.Lock()

    def is_stored(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.root, name))

    def open(self, name: str) -> IO[bytes] | None:
        """The file of an entry, which counts as its use."""
        with suppress(OSError):
            file = open(os.path.join(self.root, name), "rb")  # noqa: SIM115 (closed by the caller)
            os.utime(file.fileno())
            return file
        return None

    def store(self, name: str, entry: bytes) -> Refusal | None:
        """Store an entry, and return None, or why it is not stored."""
        found = head(entry[:MAX_HEAD_BYTES])
        if len(entry) > self.max_entry_bytes:
            return Refusal.TOO_LARGE
        if found is None or f"{found.kind}/{name_of(found.key)}" != name:
            return Refusal.NOT_AN_ENTRY
        verdict = self._verdict(entry)
        if verdict is Verdict.DAMAGED:
            return Refusal.NOT_AN_ENTRY
        if verdict is not Verdict.TRUSTED:
            return Refusal.NOT_TRUSTED
        return self._place(Entries(self.root, found.kind, self.max_bytes), found.key, entry)

    def _place(self, entries: Entries, key: str, entry: bytes) -> Refusal | None:
        with self._lock:
            try:
                replaced = os.path.getsize(entries.path(key))
            except OSError:
                replaced = 0
            try:
                entries.place(key, entry)
            except OSError:
                return Refusal.NO_ROOM
            self.bytes += len(entry) - replaced
            if self.bytes > self.max_bytes:
                self.bytes = entries.sweep()
        return None
