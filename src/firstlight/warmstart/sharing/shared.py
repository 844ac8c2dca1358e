"""A place that several machines share, as one process uses it: with care, and never in its way.

An entry is handed on only if a trusted key has signed it for this key and kind of machine. What is
compiled here is signed and sent in the background. A place that fails is left alone for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from firstlight.errors import FirstlightError
from firstlight.warmstart import sealed
from firstlight.warmstart.entries import name_of
from firstlight.warmstart.leases import MAX_WAIT_SECONDS
from firstlight.warmstart.sharing.place import LeaseState, Place, PlaceError, Trouble
from firstlight.warmstart.sharing.places import place_at
from firstlight.warmstart.sharing.server_leases import ServerLeases
from firstlight.warmstart.sharing.uploads import Uploads
from firstlight.warmstart.signing import Signatures, Verdict, what_to_do
from firstlight.warmstart.warning import warn

#: How long a place that failed is left alone: at first, and at most.
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS = 20.0, 600.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.25
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
    """The place at a URL; None, after a warning, where this process can make no use of it.

    why_shared: of a folder, why it is not one of this user's own.
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
    """clock, sleep: of breaks and of a process that waits for another one's compile."""

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
        self._said: set[object] = set()
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
        """A trusted entry, which another machine may be compiling; None: compile it here.

        on_progress: called now and then while that one makes progress.
        """
        name = f"{kind}/{name_of(key)}"
        entry = self._fetched(name, kind, key)
        if entry is None and waits and self._place.has_leases:
            return self._awaited(name, kind, key, on_progress)
        return entry

    def put(self, key: str, entry: bytes, kind: str) -> None:
        """Send an entry in the background, and then let others have it."""
        lease = self._leases.handed_over()
        if self._may_write and not self._is_resting():
            self._uploads.add(f"{kind}/{name_of(key)}", entry, lease)
        else:
            self._uploads.add("", b"", lease)

    def release(self) -> None:
        """Nothing came of what this thread was to compile."""
        if (lease := self._leases.handed_over()) is not None:
            self._uploads.add("", b"", lease)

    def flush(self, seconds: float) -> None:
        self._uploads.flush(seconds)

    def _fetched(self, name: str, kind: str, key: str) -> bytes | None:
        if self._is_resting():
            return None
        try:
            entry = self._place.fetch(name)
        except PlaceError as error:
            self._failed(error)
            return None
        self._rest_seconds = _FIRST_REST_SECONDS
        if entry is None:
            return None
        verdict = self._signatures.verdict(entry)
        head = sealed.head(entry[: sealed.MAX_HEAD_BYTES])
        if verdict is Verdict.TRUSTED and (head is None or (head.kind, head.key) != (kind, key)):
            verdict = Verdict.FORGED  # signed, but for something else
        if verdict is not Verdict.TRUSTED:
            self._refused(verdict, entry)
            return None
        return entry

    def _awaited(
        self, name: str, kind: str, key: str, on_progress: Callable[[], None]
    ) -> bytes | None:
        """Wait while another machine compiles; None where this one has to."""
        end = self._clock() + MAX_WAIT_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while not self._is_resting() and self._clock() < end:
            try:
                state = self._leases.ask(name, self._may_write)
            except PlaceError as error:
                self._failed(error, writing=self._may_write)
                continue
            if state is LeaseState.STORED:
                return self._fetched(name, kind, key)
            if state is not LeaseState.HELD:
                return None
            on_progress()
            self._sleep(pause)
            pause = min(1.3 * pause, _LONGEST_PAUSE_SECONDS)
        return None

    def _upload(self, name: str, entry: bytes, lease: str | None) -> None:
        try:
            if entry and self._may_write and not self._is_resting():
                self._place.store(name, self._signatures.sign(entry))
        except PlaceError as error:
            self._failed(error, writing=True)
        finally:
            self._leases.end(lease)

    def _is_resting(self) -> bool:
        return self._clock() < self._rests_until

    def _failed(self, error: PlaceError, writing: bool = False) -> None:
        if error.trouble in (Trouble.DENIED, Trouble.NOT_WRITABLE) and writing:
            self._may_write = False
        elif error.trouble is Trouble.DOWN:
            self._rests_until = self._clock() + self._rest_seconds
            self._rest_seconds = min(2 * self._rest_seconds, _LONGEST_REST_SECONDS)
        elif error.trouble is not Trouble.REFUSED:
            self._rests_until = float("inf")
        what = "nothing more is sent to" if writing and not self._may_write else "trouble with"
        self._say(error.trouble, f"{what} {self._place.url}: {error}. {_WHAT_TO_DO[error.trouble]}")

    def _refused(self, verdict: Verdict, entry: bytes) -> None:
        self._say(
            verdict,
            f"an entry at {self._place.url} is not loaded: {verdict.value}. {_COMPILES}."
            f"{what_to_do(verdict, entry)}",
        )

    def _say(self, about: object, text: str) -> None:
        """Once, of everything of one kind."""
        if about not in self._said:
            self._said.add(about)
            warn(text)
