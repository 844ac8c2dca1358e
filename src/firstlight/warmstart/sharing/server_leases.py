"""Leases of a server: of all machines that use it, one compiles a program.

They expire by the server's clock, so clocks need not agree.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace

from firstlight.warmstart.leases import HeldLeases
from firstlight.warmstart.sharing.place import LeaseState, Place, PlaceError


@dataclass(frozen=True)
class _Lease:
    place: Place
    name: str
    key: str
    holder: threading.Thread | None

    def renew(self) -> None:
        with suppress(PlaceError):
            self.place.lease(self.name, "renew", self.key)

    def release(self) -> None:
        with suppress(PlaceError):  # then it expires
            self.place.lease(self.name, "release", self.key)


class ServerLeases:
    """The server leases of this process; each thread compiles one program at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._held = HeldLeases[_Lease]()
        self._of_thread = threading.local()

    def ask(self, name: str, may_compile: bool) -> LeaseState:
        """The state of a program; GRANTED: this thread is to compile it while others wait."""
        self.end(self.hand_over())  # of a program that was looked for and not compiled
        if not may_compile:
            return self._place.lease(name, "look", "")
        key = os.urandom(16).hex()
        state = self._place.lease(name, "take", key)
        if state is LeaseState.GRANTED:
            self._of_thread.key = key
            self._held.hold(key, _Lease(self._place, name, key, threading.current_thread()))
        return state

    def hand_over(self) -> str | None:
        """Detach the lease from this thread; the caller passes its key to `end`."""
        key: str | None = getattr(self._of_thread, "key", None)
        self._of_thread.key = None
        if (lease := self._held[key]) is not None:
            self._held.hold(key, replace(lease, holder=None))
        return key

    def end(self, key: str | None) -> None:
        """Give a lease back."""
        self._held.release(key)
