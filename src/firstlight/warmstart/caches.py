"""A cache to look into, wherever it is: a folder, a server, an object store."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol
from urllib.parse import urlsplit

from firstlight.errors import FirstlightError
from firstlight.warmstart import folder
from firstlight.warmstart.entries import name_of
from firstlight.warmstart.inventory import Listed, entries_below
from firstlight.warmstart.sealed import is_whole
from firstlight.warmstart.sharing.place import Place, PlaceError
from firstlight.warmstart.sharing.places import ObjectPlace, place_at
from firstlight.warmstart.signing import Signatures, Verdict

NEEDS_KEY = (
    "to send programs to others you need a key: firstlight keys generate, or name one without a "
    "passphrase with FIRSTLIGHT_SIGNING_KEY"
)


class CacheError(FirstlightError):
    """A cache that cannot be read, or does not do what was asked of it."""


class Cache(Protocol):
    def entries(self) -> list[Listed]: ...
    def content(self, one: Listed) -> bytes | None: ...
    def remove(self, one: Listed) -> None: ...
    def trouble(self, one: Listed) -> Verdict | None:
        """Why no process would load it; None: one would."""


def default_cache() -> str:
    return os.environ.get("FIRSTLIGHT_CACHE_DIR") or folder.of_user()


def cache_at(where: str) -> Cache:
    scheme = urlsplit(where).scheme if "://" in where else ""
    try:
        if scheme in ("http", "https"):
            return ServerCache(where)
        if scheme not in ("file", ""):
            return ObjectCache(where)
        path = where.removeprefix("file://")
        if not os.path.isdir(path):
            raise CacheError(f"{path}: there is no such folder.")
        try:
            return FolderCache(folder.opened(path))
        except folder.ForeignFolderError:
            return ForeignFolderCache(os.path.join(path, folder.LAYOUT))
    except PlaceError as error:
        raise CacheError(f"{where}: {error}.") from None


class FolderCache:
    """A folder of this user's own: entries need not be signed."""

    def __init__(self, root: str) -> None:
        self._root = root

    def entries(self) -> list[Listed]:
        return entries_below(self._root)

    def content(self, one: Listed) -> bytes | None:
        try:
            with open(os.path.join(self._root, one.path), "rb") as file:
                return file.read()
        except OSError:
            return None

    def remove(self, one: Listed) -> None:
        os.unlink(os.path.join(self._root, one.path))

    def trouble(self, one: Listed) -> Verdict | None:
        content = self.content(one)
        if content is None or not _is_in_place(one) or not is_whole(content):
            return Verdict.DAMAGED
        is_ours = folder.is_trusted(os.stat(os.path.join(self._root, one.path)))
        return None if is_ours else Verdict.EXPOSED


class _Elsewhere:
    """Entries that others can have written."""

    @cached_property
    def _signatures(self) -> Signatures:
        return Signatures.of_user()

    def content(self, one: Listed) -> bytes | None:
        raise NotImplementedError

    def trouble(self, one: Listed) -> Verdict | None:
        content = self.content(one)
        if content is None or not _is_in_place(one):
            return Verdict.DAMAGED
        verdict = self._signatures.verdict(content)
        return None if verdict is Verdict.TRUSTED else verdict


class ForeignFolderCache(_Elsewhere, FolderCache):
    trouble = _Elsewhere.trouble
    content = FolderCache.content


class ServerCache(_Elsewhere):
    def __init__(self, url: str) -> None:
        from firstlight.warmstart.sharing.http_place import HttpPlace, own_token

        self._place = HttpPlace(url, own_token())

    def entries(self) -> list[Listed]:
        with _asking(self._place.url):
            lines = self._place.text("/v1/entries").splitlines()
        try:
            return [_from_line(json.loads(line)) for line in lines]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise CacheError(f"{self._place.url}: not a cache server of Firstlight's.") from None

    def content(self, one: Listed) -> bytes | None:
        with _asking(self._place.url):
            return self._place.fetch(one.path)

    def remove(self, one: Listed) -> None:
        raise CacheError(
            f"{self._place.url}: a server removes entries itself (--max-bytes). On its own "
            "machine: firstlight cache prune FOLDER"
        )

    def counts(self) -> dict[str, int]:
        """Hits and misses since the server started."""
        with _asking(self._place.url):
            text = self._place.text("/metrics")
        found = re.findall(
            r'^firstlight_cache_server_lookups_total\{result="(\w+)"\} (\d+)\.0$', text, re.M
        )
        return {f"{result}": int(count) for result, count in found}


class ObjectCache(_Elsewhere):
    def __init__(self, url: str) -> None:
        self._place = ObjectPlace(url)

    def entries(self) -> list[Listed]:
        with _asking(self._place.url):
            return sorted(self._place.listed(), key=lambda one: -one.used)

    def content(self, one: Listed) -> bytes | None:
        with _asking(self._place.url):
            return self._place.fetch(one.path)

    def remove(self, one: Listed) -> None:
        with _asking(self._place.url):
            self._place.remove(one.path)


def push(url: str, wanted: Callable[[Listed], bool] = lambda one: True) -> tuple[int, int]:
    """Send what the folder of this machine has and a shared cache has not: (sent, there before)."""
    signatures, place = Signatures.of_user(), _place(url)
    if signatures.own is None:
        raise CacheError(NEEDS_KEY)
    own = FolderCache(folder.opened(folder.in_front()))
    there = {one.path for one in cache_at(url).entries()}
    chosen = [one for one in own.entries() if wanted(one)]
    sent = 0
    for one in chosen:
        content = own.content(one)
        if one.path in there or content is None or own.trouble(one) is not None:
            continue
        with _asking(url):
            place.store(one.path, signatures.sign(content))
        sent += 1
    return sent, sum(one.path in there for one in chosen)


def _place(url: str) -> Place:
    with _asking(url):
        return place_at(url)


@contextmanager
def _asking(url: str) -> Iterator[None]:
    try:
        yield
    except PlaceError as error:
        raise CacheError(f"{url}: {error}.") from None


def _is_in_place(one: Listed) -> bool:
    return bool(one.key) and one.path == f"{one.kind}/{name_of(one.key)}"


def _from_line(plain: dict[str, Any]) -> Listed:
    kind, key, about = str(plain["kind"]), str(plain["key"]), plain["about"]
    return Listed(
        path=str(plain["path"]),
        kind=kind,
        key=key,
        size=int(plain["bytes"]),
        used=min(max(float(plain["used"]), 0.0), time.time()),
        signer=bytes.fromhex(plain["signer"]),
        about=about if isinstance(about, dict) else {},
    )
