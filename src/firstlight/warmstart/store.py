"""The store that JAX asks for compiled programs: processes that share a folder compile each once.

Trouble with the folder never stops the program; at worst it compiles.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from firstlight.warmstart.entries import LEASE, Entries
from firstlight.warmstart.leases import Leases, Waited
from firstlight.warmstart.sealed import seal, unchecked_value
from firstlight.warmstart.warning import warn

if TYPE_CHECKING:
    from firstlight.warmstart.sharing.shared import Shared


class Store:
    """`get` and `put`, as JAX calls them around a compile.

    shares_work: called on every miss: whether to wait for another process that compiles the same.
    about: a description (JSON) of the program of a key that was just compiled.
    open_shared: called on the first miss: the cache behind the folder, shared with other machines.
    """

    def __init__(
        self,
        entries: Entries,
        leases: Leases,
        shares_work: Callable[[], bool] = lambda: True,
        about: Callable[[str], bytes] = lambda key: b"{}",
        open_shared: Callable[[], Shared | None] = lambda: None,
    ) -> None:
        self._path = entries.folder  # JAX's name for it, used where it logs
        self._entries = entries
        self._leases = leases
        self._shares_work = shares_work
        self._about = about
        self._open_shared = open_shared
        self._is_writable = True
        self._opened: Shared | None = None
        self._is_opened = False
        self._lock = threading.Lock()

    @property
    def _shared(self) -> Shared | None:
        with self._lock:
            if not self._is_opened:
                self._opened, self._is_opened = self._open_shared(), True
            return self._opened

    def get(self, key: str) -> bytes | None:
        """The program, after waiting for a process that compiles it; None: compile it here."""
        try:
            value = self._entries.read(key)
            if value is None and self._is_writable and self._shares_work():
                return self._wait_or_lease(key)
        except OSError as error:
            self._give_up_writing(error)
            value = None
        return self._from_shared(key) if value is None else value

    def look(self, key: str) -> bytes | None:
        """The value if the folder or the shared cache has it now; never waits for a compile."""
        try:
            value = self._entries.read(key)
        except OSError:
            value = None
        return self._from_shared(key, waits=False) if value is None else value

    def put(self, key: str, value: bytes) -> None:
        entry = seal(self._entries.kind, key, value, self._about(key))
        try:
            self._keep(key, entry)
        finally:
            self._leases.release()
        if self._shared is not None:
            self._shared.put(self._entries.kind, key, entry)

    def release(self) -> None:
        """Called at the end of every compile, also after a failure."""
        self._leases.release()
        if self._opened is not None:
            self._opened.release()

    def flush(self, seconds: float) -> None:
        """Wait until everything that was put has been sent to the shared cache, or time is up."""
        if self._shared is not None:
            self._shared.flush(seconds)

    def _from_shared(self, key: str, waits: bool = True) -> bytes | None:
        """What another machine has compiled, or is compiling; it is stored here too."""
        if self._shared is None:
            return None
        kind, waits = self._entries.kind, waits and self._shares_work()
        entry = self._shared.get(kind, key, waits, on_progress=self._leases.renew)
        if entry is None:
            return None
        self._keep(key, entry)
        return unchecked_value(entry)

    def _keep(self, key: str, entry: bytes) -> None:
        try:
            if self._is_writable:
                self._entries.keep(key, entry)
        except OSError as error:
            self._give_up_writing(error)

    def _wait_or_lease(self, key: str) -> bytes | None:
        """The program of another process, or None with the lease to compile it here."""
        lease = self._entries.path(key) + LEASE
        waited = None
        while not self._leases.take(lease, after_expiry=waited is Waited.EXPIRED):
            if waited is Waited.RELEASED:
                return None  # programs that are not stored gain nothing from queueing
            waited = self._leases.wait(lease)
            if waited is Waited.STILL_HELD:
                return None
            value = self._entries.read(key)
            if value is not None:
                return value
        # It may have been stored between the first read and the lease.
        value = self._entries.read(key) or self._from_shared(key)
        if value is not None:
            self._leases.release()
        return value

    def _give_up_writing(self, error: OSError) -> None:
        if self._is_writable:
            self._is_writable = False
            warn(
                f"nothing more is stored in {self._path}: {error.strerror or error}. Make room "
                "there or make it writable, name another folder with FIRSTLIGHT_CACHE_DIR, or "
                "turn the cache off with FIRSTLIGHT_CACHE=off."
            )
