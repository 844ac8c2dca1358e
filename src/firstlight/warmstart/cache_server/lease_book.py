"""A server's leases, in memory and by its own clock.

After a restart the server knows none: a process that renews a free lease gets it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from firstlight.warmstart.leases import LEASE_SECONDS
from firstlight.warmstart.sharing.place import LeaseState

#: How long nobody waits for a program that was compiled and not stored.
_NOT_STORED_SECONDS = 60.0
_MAX_REMEMBERED = 100_000


class LeaseBook:
    """is_stored: whether an entry of this name exists. clock: in seconds."""

    def __init__(
        self, is_stored: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_stored = is_stored
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[str, tuple[str, float]] = {}  # holder, end
        self._not_stored: dict[str, float] = {}  # end
        self._actions = {
            "look": self._look,
            "take": self._take,
            "renew": self._renew,
            "release": self._release,
        }

    def act(
        self, name: str, action: str, holder: str, patience_seconds: float = 0.0
    ) -> LeaseState | None:
        """The state of a lease after `look`, `take`, `renew` or `release`; None: no such action.

        patience_seconds: how long to wait if another process holds it.
        """
        if action not in self._actions:
            return None
        with self._changed:
            self._remove_ended()
            state = self._actions[action](name, holder)
            if state is LeaseState.HELD and patience_seconds and action in ("look", "take"):
                self._changed.wait(patience_seconds)
                state = self._actions[action](name, holder)
            if action == "release":
                self._changed.notify_all()
            return state

    def count(self) -> int:
        with self._changed:
            return sum(end > self._clock() for _, end in self._held.values())

    def _holder(self, name: str) -> str | None:
        holder, end = self._held.get(name, (None, 0.0))
        return holder if end > self._clock() else None

    def _look(self, name: str, holder: str) -> LeaseState:
        if self._is_stored(name):
            return LeaseState.STORED
        return LeaseState.FREE if self._holder(name) is None else LeaseState.HELD

    def _take(self, name: str, holder: str) -> LeaseState:
        state = self._look(name, holder)
        if state is LeaseState.HELD and self._holder(name) == holder:
            return LeaseState.GRANTED  # the first answer was lost
        if state is not LeaseState.FREE or self._not_stored.get(name, 0.0) > self._clock():
            return state
        return self._granted(name, holder)

    def _renew(self, name: str, holder: str) -> LeaseState:
        if self._holder(name) not in (None, holder):
            return LeaseState.HELD
        return self._granted(name, holder)

    def _release(self, name: str, holder: str) -> LeaseState:
        if self._holder(name) == holder:
            del self._held[name]
            if not self._is_stored(name):
                self._not_stored[name] = self._clock() + _NOT_STORED_SECONDS
        return LeaseState.FREE

    def _granted(self, name: str, holder: str) -> LeaseState:
        self._held[name] = (holder, self._clock() + LEASE_SECONDS)
        return LeaseState.GRANTED

    def _remove_ended(self) -> None:
        if len(self._held) + len(self._not_stored) > _MAX_REMEMBERED:
            now = self._clock()
            self._held = {n: held for n, held in self._held.items() if held[1] > now}
            self._not_stored = {n: end for n, end in self._not_stored.items() if end > now}
