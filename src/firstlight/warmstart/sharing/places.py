"""Places shared by machines: our server, a folder, or an object store.

They store and return whole entries by name. The reader decides whether to load an entry.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from firstlight.warmstart import folder
from firstlight.warmstart.inventory import Listed, entries_below, listed_entry
from firstlight.warmstart.sealed import MAX_HEAD_BYTES
from firstlight.warmstart.sharing.place import MAX_ENTRY_BYTES, Place, PlaceError, Trouble

_SECONDS, _LISTING_SECONDS = 20.0, 600.0


def place_at(url: str) -> Place:
    """The place at a URL; PlaceError if it cannot be one."""
    scheme = urlsplit(url).scheme
    if scheme in ("http", "https"):
        from firstlight.warmstart.sharing.http_place import HttpPlace, own_token

        return HttpPlace(url, own_token())
    if scheme in ("file", ""):
        return FolderPlace(url.removeprefix("file://"))
    return ObjectPlace(url)


class FolderPlace(Place):
    """A folder that belongs to another user, or that others can write to."""

    def __init__(self, path: str) -> None:
        self.url = path or "/"
        self._root = os.path.join(path, folder.LAYOUT)

    def fetch(self, name: str) -> bytes | None:
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            with open(os.open(os.path.join(self._root, name), flags), "rb") as file:
                found = file.read(MAX_ENTRY_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PlaceError(Trouble.DOWN, error.strerror or str(error)) from None
        return found if len(found) <= MAX_ENTRY_BYTES else None

    def store(self, name: str, entry: bytes) -> None:
        path = os.path.join(self._root, name)
        unfinished = f"{path}.{os.urandom(6).hex()}.unfinished"
        try:
            self._make_folders(name)
            with open(unfinished, "xb") as file:
                file.write(entry)
            os.replace(unfinished, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(unfinished)
            raise PlaceError(Trouble.NOT_WRITABLE, error.strerror or str(error)) from None

    def listed(self) -> list[Listed]:
        return entries_below(self._root)

    def remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._root, name))
        except OSError as error:
            raise PlaceError(Trouble.NOT_WRITABLE, error.strerror or str(error)) from None

    def _make_folders(self, name: str) -> None:
        """Create folders with the permissions of the root, independent of the umask."""
        mode = os.stat(self.url).st_mode & 0o7777
        path = self.url
        for part in (folder.LAYOUT, *name.split("/")[:-1]):
            path = os.path.join(path, part)
            with suppress(FileExistsError):
                os.mkdir(path)
                os.chmod(path, mode)


class ObjectPlace(Place):
    """An object store, or any other file system that fsspec supports."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url.rstrip("/")
        # Do not wait for an object store that is down: programs can be compiled instead.
        options: dict[str, object] = {}
        if urlsplit(url).scheme in ("s3", "s3a"):
            waits = {"connect_timeout": 3, "read_timeout": 10, "retries": {"max_attempts": 1}}
            options = {"config_kwargs": waits}
        try:
            self._files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **options)
        except Exception as error:
            s3 = "pip install 'firstlight[s3]'" if url.startswith("s3") else str(error)
            raise PlaceError(Trouble.UNUSABLE, f"this protocol needs: {s3}") from None
        self._root = f"{root.rstrip('/')}/{folder.LAYOUT}"

    def fetch(self, name: str) -> bytes | None:
        path = f"{self._root}/{name}"

        def read() -> bytes | None:
            try:
                found: bytes = self._files.cat_file(path, end=MAX_ENTRY_BYTES + 1)
            except FileNotFoundError:
                return None
            return found if len(found) <= MAX_ENTRY_BYTES else None

        found: bytes | None = _within_seconds(read)
        return found

    def store(self, name: str, entry: bytes) -> None:
        path = f"{self._root}/{name}"

        def write() -> None:
            if "memory" in self._files.protocol or "file" in self._files.protocol:
                self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            self._files.pipe_file(path, entry)

        _within_seconds(write)

    def listed(self) -> list[Listed]:
        """All entries; reads the head of each."""

        def look() -> list[Listed]:
            try:
                found = self._files.find(self._root, detail=True)
            except FileNotFoundError:
                return []
            heads = self._files.cat_ranges([*found], 0, MAX_HEAD_BYTES, on_error="return")
            base = self._files._strip_protocol(self._root).rstrip("/") + "/"
            return [
                listed_entry(path.removeprefix(base), head, int(about["size"]), _time_of(about))
                for (path, about), head in zip(found.items(), heads, strict=True)
                if isinstance(head, bytes)
            ]

        found: list[Listed] = _within_seconds(look, _LISTING_SECONDS)
        return found

    def remove(self, name: str) -> None:
        _within_seconds(lambda: self._files.rm_file(f"{self._root}/{name}"))


def _time_of(about: dict[str, Any]) -> float:
    """When an object was last written; object stores do not know when it was read."""
    when = about.get("LastModified") or about.get("created") or about.get("mtime") or 0.0
    return float(when.timestamp() if hasattr(when, "timestamp") else when)


def _within_seconds(action: Any, seconds: float = _SECONDS) -> Any:
    """The action's result, or PlaceError: libraries of object stores retry for minutes."""
    done: Future[Any] = Future()

    def act() -> None:
        try:
            done.set_result(action())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=act, daemon=True).start()  # an executor's would delay the exit
    wait([done], seconds)
    if not done.done():
        raise PlaceError(Trouble.DOWN, f"no answer within {seconds:g} s")
    if (error := done.exception()) is None:
        return done.result()
    trouble = Trouble.DENIED if isinstance(error, PermissionError) else Trouble.DOWN
    short = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    raise PlaceError(trouble, short) from None
