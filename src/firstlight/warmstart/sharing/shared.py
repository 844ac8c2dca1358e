"""How a process uses a place shared by machines, without being held up by it.

An entry is used only if a trusted key has signed it for this key and kind of machine. Programs
compiled here are signed and sent in the background. A place that fails is not asked for a while.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from firstlight.errors import FirstlightError
from firstlight.warmstart import sealed
from firstlight.warmstart.entries import name_of
from firstlight.warmstart.leases import MAX_WAIT_SECONDS, HeldLeases
from firstlight.warmstart.sharing.place import LeaseState, Place, PlaceError, Trouble
from firstlight.warmstart.sharing.places import place_at
from firstlight.warmstart.sharing.uploads import Uploads
from firstlight.warmstart.signing import Signatures, Verdict, what_to_do
from firstlight.warmstart.warning import warn

#: How long a place that failed is not asked again: the first time, and at most.
_FIRST_REST_SECONDS, _MAX_REST_SECONDS = 20.0, 600.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.01, 0.25
_COMPILES = "Programs are compiled here and kept on this machine"
_WHAT_TO_DO = {
    Trouble.DOWN: f"{_COMPILES}; it is tried again later. Once it answers, `firstlight cache push` "
    "sends them.",
    Trouble.DENIED: f"{_COMPILES}. Check FIRSTLIGHT_CACHE_TOKEN_FILE, and that the token may do "
    "this.",
    Trouble.NOT_WRITABLE: f"{_COMPILES}. Make this folder, make it writable, or make room there.",
    Trouble.UNUSABLE: f"{_COMPILES}.",
    Trouble.REFUSED: f"{_COMPILES}.",
}


def open_shared(url: str, why_shared: str = "") -> Shared | None:
    """The place at a URL; None, after a warning, if this process cannot use it.

    why_shared: why a folder is treated as shared.
    """
    try:
        signatures, place = Signatures.of_user(), place_at(url)
    except (FirstlightError, PlaceError, OSError) as error:
        warn(f"{url} is not used: {str(error).rstrip('.')}. {_COMPILES}.")
        return None
    if not signatures.trusted:
        why = why_shared or f"{url} is not used: you have no key to sign with, and trust no other."
        warn(
            f"{why} {_COMPILES}. To share what you compile: firstlight keys generate; to load "
            "what others do: firstlight keys trust --programs KEY --name NAME"
        )
        return None
    return Shared(place, signatures)


class Shared:
    """clock, sleep: for pauses after failures and while another machine compiles."""

    def __init__(
        self,
        place: Place,
        signatures: Signatures,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place = place
        self._signatures = signatures
        self._clock, self._sleep = clock, sleep
        self._rest_seconds, self._rests_until = _FIRST_REST_SECONDS, float("-inf")
        self._may_write = signatures.own is not None
        self._warned: set[object] = set()
        self._leases = ServerLeases(place)
        self._uploads = Uploads(self._upload)
        os.register_at_fork(after_in_child=place.forget_connections)

    def get(
        self,
        kind: str,
        key: str,
        waits: bool = True,
        on_progress: Callable[[], None] = lambda: None,
    ) -> bytes | None:
        """A trusted entry, after waiting for a machine that compiles it; None: compile it here.

        waits: False: do not wait. on_progress: called repeatedly during the wait.
        """
        name = f"{kind}/{name_of(key)}"
        entry = self._fetch(name, kind, key)
        if entry is None and waits and self._place.has_leases:
            return self._wait_or_lease(name, kind, key, on_progress)
        return entry

    def put(self, kind: str, key: str, entry: bytes) -> None:
        """Send an entry in the background, then release the lease."""
        may_send = self._may_write and not self._is_resting()
        lease = self._leases.hand_over()
        self._uploads.add(f"{kind}/{name_of(key)}", entry if may_send else b"", lease)

    def release(self) -> None:
        """Release the lease of a compile that failed or was not stored."""
        if (lease := self._leases.hand_over()) is not None:
            self._uploads.add("", b"", lease)

    def flush(self, seconds: float) -> None:
        self._uploads.flush(seconds)

    def _fetch(self, name: str, kind: str, key: str) -> bytes | None:
        if self._is_resting():
            return None
        try:
            entry = self._place.fetch(name)
        except PlaceError as error:
            self._on_failure(error)
            return None
        self._rest_seconds = _FIRST_REST_SECONDS
        if entry is None:
            return None
        verdict = self._signatures.verdict(entry)
        head = sealed.head(entry[: sealed.MAX_HEAD_BYTES])
        if verdict is Verdict.TRUSTED and (head is None or (head.kind, head.key) != (kind, key)):
            verdict = Verdict.FORGED  # signed, but for something else
        if verdict is Verdict.TRUSTED:
            return entry
        self._warn_once(
            verdict,
            f"an entry at {self._place.url} is not loaded: {verdict.value}. {_COMPILES}."
            f"{what_to_do(verdict, entry)}",
        )
        return None

    def _wait_or_lease(
        self, name: str, kind: str, key: str, on_progress: Callable[[], None]
    ) -> bytes | None:
        """Wait while another machine compiles; None: compile it here."""
        end = self._clock() + MAX_WAIT_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while not self._is_resting() and self._clock() < end:
            try:
                state = self._leases.ask(name, self._may_write)
            except PlaceError as error:
                self._on_failure(error, writing=self._may_write)
                continue
            if state is LeaseState.STORED:
                return self._fetch(name, kind, key)
            if state is not LeaseState.HELD:
                return None
            on_progress()
            self._sleep(pause)
            pause = min(1.3 * pause, _MAX_PAUSE_SECONDS)
        return None

    def _upload(self, name: str, entry: bytes, lease: str | None) -> None:
        try:
            if entry and self._may_write and not self._is_resting():
                self._place.store(name, self._signatures.sign(entry))
        except PlaceError as error:
            self._on_failure(error, writing=True)
        finally:
            self._leases.end(lease)

    def _is_resting(self) -> bool:
        return self._clock() < self._rests_until

    def _on_failure(self, error: PlaceError, writing: bool = False) -> None:
        if error.trouble in (Trouble.DENIED, Trouble.NOT_WRITABLE) and writing:
            self._may_write = False
        elif error.trouble is Trouble.DOWN:
            self._rests_until = self._clock() + self._rest_seconds
            self._rest_seconds = min(2 * self._rest_seconds, _MAX_REST_SECONDS)
        elif error.trouble is not Trouble.REFUSED:
            self._rests_until = float("inf")
        what = "nothing more is sent to" if writing and not self._may_write else "trouble with"
        text = f"{what} {self._place.url}: {error}. {_WHAT_TO_DO[error.trouble]}"
        self._warn_once(error.trouble, text)

    def _warn_once(self, kind: object, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warn(text)


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
    """This process's leases at a server; each thread compiles one program at a time.

    They expire by the server's clock, so clocks need not agree.
    """

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
