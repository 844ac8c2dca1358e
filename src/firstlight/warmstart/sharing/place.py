"""What a place that several machines share offers, and how it fails."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from firstlight.warmstart.inventory import Listed

#: No entry is larger: a place could otherwise fill the memory of its readers.
MAX_ENTRY_BYTES = 1 << 30


class Trouble(Enum):
    DOWN = auto()  # not reached, or in no state to answer: worth another try later
    DENIED = auto()  # the token is missing or wrong, or may not do this
    NOT_WRITABLE = auto()  # a folder: it is not there, not this user's, or full
    REFUSED = auto()  # this one entry
    UNUSABLE = auto()  # never, in this process


class PlaceError(Exception):
    def __init__(self, trouble: Trouble, why: str) -> None:
        super().__init__(why)
        self.trouble = trouble


class LeaseState(Enum):
    """What a server says of the right to compile a program."""

    GRANTED = "granted"
    HELD = "held"  # by another process, which makes progress
    STORED = "stored"  # there is nothing to compile any more
    FREE = "free"  # nobody has it, or waiting for it would gain nothing


class Place(Protocol):
    """name: of an entry, relative to the place. `fetch` and `store` raise PlaceError only."""

    url: str
    has_leases: bool

    def fetch(self, name: str) -> bytes | None: ...
    def store(self, name: str, entry: bytes) -> None: ...
    def listed(self) -> list[Listed]: ...
    def remove(self, name: str) -> None: ...
    def counts(self) -> dict[str, int]: ...
    def lease(self, name: str, action: str, holder: str) -> LeaseState: ...
    def forget_connections(self) -> None: ...
