"""The interface of a place shared by machines, and its errors."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from firstlight.warmstart.inventory import Listed

#: Larger entries are refused: a place could otherwise fill its readers' memory.
MAX_ENTRY_BYTES = 1 << 30


class Trouble(Enum):
    DOWN = auto()  # unreachable or failing: try again later
    DENIED = auto()  # the token is missing or wrong, or does not allow this
    NOT_WRITABLE = auto()  # a folder that is missing, not writable, or full
    REFUSED = auto()  # concerns this entry only
    UNUSABLE = auto()  # for the life of this process


class PlaceError(Exception):
    def __init__(self, trouble: Trouble, why: str) -> None:
        super().__init__(why)
        self.trouble = trouble


class LeaseState(Enum):
    """A server's answer about the right to compile a program."""

    GRANTED = "granted"
    HELD = "held"  # by another process that makes progress
    STORED = "stored"  # the program has been compiled
    FREE = "free"  # not held, or there is no point in waiting


class Place(Protocol):
    """name: of an entry, relative to the place. All methods raise PlaceError only."""

    url: str
    has_leases: bool = False

    def fetch(self, name: str) -> bytes | None: ...
    def store(self, name: str, entry: bytes) -> None: ...
    def listed(self) -> list[Listed]: ...
    def remove(self, name: str) -> None: ...

    def counts(self) -> dict[str, int]:
        return {}

    def lease(self, name: str, action: str, holder: str) -> LeaseState:
        return LeaseState.FREE

    def forget_connections(self) -> None:
        return None
