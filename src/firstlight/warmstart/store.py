"""What JAX asks for compiled programs: those of all processes that share a folder, compiled once.

Whatever is wrong with the folder, the program runs; at worst it compiles.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from firstlight.warmstart.entries import LEASE, Entries
from firstlight.warmstart.leases import Leases, Waited


class Store:
    """`get` and `put`, as JAX calls them around a compile.

    shares_work: asked on every miss: whether to wait for another process that compiles the same.
    """

    def __init__(
        self, entries: Entries, leases: Leases, shares_work: Callable[[], bool] = lambda: True
    ) -> None:
        self._path = entries.folder  # JAX's name for it, used where it logs
        self._entries = entries
        self._leases = leases
        self._shares_work = shares_work
        self._is_writable = True

    def get(self, key: str) -> bytes | None:
        """The program, which another process may be compiling. None: this thread should."""
        try:
            value = self._entries.read(key)
            if value is None and self._is_writable and self._shares_work():
                value = self._awaited(key)
            return value
        except OSError as error:
            self._give_up_writing(error)
            return None

    def put(self, key: str, value: bytes) -> None:
        try:
            if self._is_writable:
                self._entries.write(key, value)
        except OSError as error:
            self._give_up_writing(error)
        finally:
            self._leases.release()

    def _awaited(self, key: str) -> bytes | None:
        """The program of another process, or None with the lease to compile it."""
        lease = self._entries.path(key) + LEASE
        waited = None
        while not self._leases.take(lease, after_expiry=waited is Waited.EXPIRED):
            if waited is Waited.RELEASED:
                return None  # it was not stored, and will not be: queueing would gain nothing
            waited = self._leases.wait(lease)
            if waited is Waited.IN_VAIN:
                return None
            value = self._entries.read(key)
            if value is not None:
                return value
        # It may have been stored between our look and our lease.
        value = self._entries.read(key)
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


def warn(about: str) -> None:
    """A warning, which ends nothing even where warnings are errors."""
    text = f"firstlight: compilation cache: {about}"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(text, file=sys.stderr)
