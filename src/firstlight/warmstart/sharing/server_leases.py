"""Leases of a server: of all machines that use it, one compiles a program.

They expire by the server's clock, so that clocks which differ do no harm. A thread renews them
while the process does any work, as those of a folder.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from firstlight.warmstart.leases import LEASE_SECONDS, MIN_WORK_SECONDS, work_seconds
from firstlight.warmstart.sharing.place import LeaseState, Place, PlaceError


class _Held(NamedTuple):
    name: str
    thread: threading.Thread | None  # which compiles; None: the result is on its way


class ServerLeases:
    """Those of this process; a thread compiles one program at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._held: dict[str, _Held] = {}  # by holder
        self._of_thread = threading.local()
        self._lock = threading.Lock()
        self._is_renewing = False

    def ask(self, name: str, may_compile: bool) -> LeaseState:
        """The state of a program; GRANTED: this thread is to compile it, and others wait."""
        self.end(self.handed_over())  # of a program that was only looked for
        if not may_compile:
            return self._place.lease(name, "look", "")
        holder = os.urandom(16).hex()
        state = self._place.lease(name, "take", holder)
        if state is LeaseState.GRANTED:
            self._of_thread.holder = holder
            with self._lock:
                self._held[holder] = _Held(name, threading.current_thread())
                if not self._is_renewing:
                    with suppress(RuntimeError):  # Python is about to end
                        threading.Thread(target=self._renew, daemon=True).start()
                        self._is_renewing = True
        return state

    def handed_over(self) -> str | None:
        """The lease of this thread, for whoever ends it."""
        holder: str | None = getattr(self._of_thread, "holder", None)
        self._of_thread.holder = None
        with self._lock:
            if holder in self._held:
                self._held[holder] = _Held(self._held[holder].name, None)
        return holder

    def end(self, holder: str | None) -> None:
        """Give a lease back; where that fails, it expires."""
        with self._lock:
            held = self._held.pop(holder or "", None)
        if held is not None and holder is not None:
            with suppress(PlaceError):
                self._place.lease(held.name, "release", holder)

    def _renew(self) -> None:
        worked = work_seconds()
        while True:
            time.sleep(LEASE_SECONDS / 5)
            is_working = work_seconds() - worked >= MIN_WORK_SECONDS
            with self._lock:
                if not self._held:
                    self._is_renewing = False
                    return
                every = dict(self._held)
            for holder, held in every.items():
                if held.thread is not None and not held.thread.is_alive():
                    self.end(holder)
                elif is_working:
                    with suppress(PlaceError):
                        self._place.lease(held.name, "renew", holder)
            worked = work_seconds()
