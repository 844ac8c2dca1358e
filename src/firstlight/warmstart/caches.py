"""Look into a cache: a folder, a server or an object store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from firstlight.errors import FirstlightError
from firstlight.warmstart import folder
from firstlight.warmstart.entries import name_of
from firstlight.warmstart.inventory import Listed
from firstlight.warmstart.sealed import is_whole
from firstlight.warmstart.sharing.place import Place, PlaceError
from firstlight.warmstart.sharing.places import FolderPlace, place_at
from firstlight.warmstart.signing import Signatures, Verdict

NEEDS_KEY = (
    "to send programs to others you need a key: firstlight keys generate, or name one without a "
    "passphrase with FIRSTLIGHT_SIGNING_KEY"
)


class CacheError(FirstlightError):
    """A cache that cannot be read, or that refused a request."""


class Cache:
    """A cache that others can write to: its entries are loaded only with a trusted signature."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def entries(self) -> list[Listed]:
        """All entries, last used first."""
        with _url_in_errors(self._place.url):
            return sorted(self._place.listed(), key=lambda one: -one.used)

    def content(self, one: Listed) -> bytes | None:
        with _url_in_errors(self._place.url):
            return self._place.fetch(one.path)

    def remove(self, one: Listed) -> None:
        with _url_in_errors(self._place.url):
            self._place.remove(one.path)

    def counts(self) -> dict[str, int]:
        """Hits and misses since the server started; empty if it is not a server."""
        with _url_in_errors(self._place.url):
            return self._place.counts()

    def trouble(self, one: Listed) -> Verdict | None:
        """Why no process would load the entry; None if one would."""
        content = self.content(one)
        if content is None or not one.key or one.path != f"{one.kind}/{name_of(one.key)}":
            return Verdict.DAMAGED
        verdict = self._verdict(one, content)
        return None if verdict is Verdict.TRUSTED else verdict

    def _verdict(self, one: Listed, content: bytes) -> Verdict:
        return self._signatures.verdict(content)

    @cached_property
    def _signatures(self) -> Signatures:
        return Signatures.of_user()


class OwnCache(Cache):
    """A folder that only this user can write to, so entries need not be signed."""

    def __init__(self, path: str) -> None:
        super().__init__(FolderPlace(path))
        self._root = folder.opened(path)

    def _verdict(self, one: Listed, content: bytes) -> Verdict:
        if not is_whole(content):
            return Verdict.DAMAGED
        is_ours = folder.is_trusted(os.stat(os.path.join(self._root, one.path)))
        return Verdict.TRUSTED if is_ours else Verdict.EXPOSED


def default_cache() -> str:
    return os.environ.get("FIRSTLIGHT_CACHE_DIR") or folder.of_user()


def cache_at(where: str) -> Cache:
    """The cache in a folder or at a URL."""
    if "://" in where and not where.startswith("file://"):
        with _url_in_errors(where):
            return Cache(place_at(where))
    path = where.removeprefix("file://")
    if not os.path.isdir(path):
        raise CacheError(f"{path}: there is no such folder.")
    try:
        return OwnCache(path)
    except folder.ForeignFolderError:
        return Cache(FolderPlace(path))


def push(url: str, wanted: Callable[[Listed], bool] = lambda one: True) -> tuple[int, int]:
    """Send what this machine's folder has and a shared cache lacks: (sent, there before)."""
    signatures = Signatures.of_user()
    if signatures.own is None:
        raise CacheError(NEEDS_KEY)
    with _url_in_errors(url):
        place = place_at(url)
    own = OwnCache(folder.in_front())
    there = {one.path for one in Cache(place).entries()}
    chosen = [one for one in own.entries() if wanted(one)]
    sent = 0
    for one in chosen:
        content = own.content(one)
        if one.path in there or content is None or own.trouble(one) is not None:
            continue
        with _url_in_errors(url):
            place.store(one.path, signatures.sign(content))
        sent += 1
    return sent, sum(one.path in there for one in chosen)


@contextmanager
def _url_in_errors(url: str) -> Iterator[None]:
    try:
        yield
    except PlaceError as error:
        raise CacheError(f"{url}: {error}.") from None
