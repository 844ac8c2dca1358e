"""Snapshots at URLs, through fsspec: S3 and compatible stores, memory, and (read-only) HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import IO, TYPE_CHECKING

from firstlight.snapshot.archive import ARCHIVES, Archive
from firstlight.snapshot.errors import (
    ChangedSnapshotError,
    HostileSnapshotError,
    SnapshotError,
    StorageError,
    UnusableSnapshotError,
)
from firstlight.snapshot.layout import INDEX, LIMITS, SIGNATURE, is_id, parse_index, require_safe
from firstlight.snapshot.sources import Item, Reader, Source, missing_file, read_whole, require_same

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_HTTP = {"http", "https"}
#: These have no folders; creating one could create a bucket.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "az"}


def _filesystem_of(url: str) -> tuple[AbstractFileSystem, str]:
    """(file system, path in it) of a URL; the error names the package that a protocol needs."""
    import fsspec

    try:
        # No cached listings: others publish into the same place.
        filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        s3 = url.split("://", 1)[0] in ("s3", "s3a")
        how = "pip install 'firstlight[s3]'" if s3 else str(error)
        raise StorageError(f"{url}: this protocol needs another package: {how}") from None
    except ValueError as error:
        raise StorageError(f"{url}: {error}") from None
    return filesystem, root.rstrip("/")


def _protocols(filesystem: AbstractFileSystem) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else {*protocol}


def open_remote(url: str) -> Source:
    filesystem, root = _filesystem_of(url)
    if not url.endswith(ARCHIVES):
        return Files(filesystem, root, url)

    def opening() -> IO[bytes]:
        with suppress(FileNotFoundError), _reaching(url):
            found: IO[bytes] = filesystem.open(root, "rb")
            return found
        raise StorageError(f"{url}: no such archive.")

    return Archive(url, opening)


class Files:
    """A snapshot, or a store of them, in a folder of an fsspec file system."""

    def __init__(self, filesystem: AbstractFileSystem, root: str, name: str) -> None:
        self._filesystem, self._root, self.name = filesystem, root, name
        self.sees_all = not _HTTP & _protocols(filesystem)

    def named_id(self) -> str | None:
        name = self._root.rsplit("/", 1)[-1]
        return name if is_id(name) else None

    def walk(self) -> Iterator[Item]:
        for path in sorted(self._names(), key=lambda path: (path != INDEX, path)):
            name = f"{self.name}/{path}"
            with suppress(FileNotFoundError):
                with _reaching(name):
                    file = self._filesystem.open(f"{self._root}/{path}", "rb")
                with file:
                    yield Item(path, _RemoteReader(file, name))

    def _names(self) -> list[str]:
        if not self.sees_all:
            index = parse_index(self.read(INDEX, LIMITS.index_bytes))
            return [INDEX, SIGNATURE, *index.files]
        found: list[str] = []
        with suppress(FileNotFoundError), _reaching(self.name):
            found = self._filesystem.find(self._root)
        if len(found) > 2 * LIMITS.files:
            raise HostileSnapshotError(f"{self.name}: more than {LIMITS.files} files.")
        base = self._filesystem._strip_protocol(self._root).rstrip("/") + "/"
        return [name.removeprefix(base) for name in found]

    def read(self, path: str, max_bytes: int) -> bytes:
        require_safe(path)
        with suppress(FileNotFoundError), _reaching(f"{self.name}/{path}"):
            file = self._filesystem.open(f"{self._root}/{path}", "rb")
            with closing(file):
                return read_whole(file, path, max_bytes)
        raise missing_file(self.name, path)


class _RemoteReader:
    """A remote file, whose reads may fail at any time."""

    def __init__(self, file: Reader, name: str) -> None:
        self._file, self._name = file, name

    def read(self, size: int, /) -> bytes:
        with suppress(FileNotFoundError), _reaching(self._name):
            return self._file.read(size)
        raise StorageError(f"{self._name}: cannot be read: it no longer exists.")


class RemoteStore:
    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._filesystem, self._root = _filesystem_of(url)

    def ids(self) -> list[str]:
        """Names of folders that could be snapshots, including half-written ones."""
        found: list[str] = []
        with suppress(FileNotFoundError), _reaching(self.name):
            found = self._filesystem.ls(self._root, detail=False)
        names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)
        return sorted(name for name in names if is_id(name))

    def source(self, snapshot_id: str) -> Source:
        path = f"{self._root}/{snapshot_id}"
        return Files(self._filesystem, path, f"{self.name}/{snapshot_id}")

    def put(self, snapshot_id: str, files: dict[str, bytes]) -> bool:
        """Write a snapshot, its index last, which completes it. False if it already exists."""
        if _HTTP & _protocols(self._filesystem):
            raise StorageError(
                f"{self.name}: this place is read-only. Publish to a "
                "directory or to s3://…, from which a web server can serve it."
            )
        if self.read(f"{snapshot_id}/{INDEX}", LIMITS.index_bytes) is not None:
            require_same(self.source(snapshot_id), files)
            return False
        for path in sorted(files, key=lambda path: (path == INDEX, path)):
            self.write(f"{snapshot_id}/{path}", files[path])
        return True

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """A file by its name in the store, or None if it is missing or too large."""
        try:
            return Files(self._filesystem, self._root, self.name).read(name, max_bytes)
        except (ChangedSnapshotError, UnusableSnapshotError):
            return None

    def read_many(self, names: list[str], max_bytes: int) -> dict[str, bytes]:
        """The files that exist, fetched concurrently if the protocol can."""
        if not names:
            return {}
        paths = {self._filesystem._strip_protocol(f"{self._root}/{name}"): name for name in names}
        found = self._filesystem.cat(list(paths), on_error="return")
        return {
            paths[path]: data
            for path, data in found.items()
            if isinstance(data, bytes) and path in paths and len(data) <= max_bytes
        }

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file; a reader sees either the old or the new one."""
        path = f"{self._root}/{name}"
        try:
            if not _OBJECT_STORES & _protocols(self._filesystem):
                self._filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            with self._filesystem.open(path, "wb") as file:
                file.write(data)
        except NotImplementedError:
            raise StorageError(f"{self.name}: this place is not writable.") from None
        except Exception as error:
            raise StorageError(
                f"{self.name}/{name}: cannot be written: {_shortened(error)}"
            ) from error


@contextmanager
def _reaching(name: str) -> Iterator[None]:
    """Convert a storage library's own errors: a missing file raises `FileNotFoundError`,
    anything else a `StorageError` with the library's message, shortened."""
    try:
        yield
    except SnapshotError:
        raise
    except Exception as error:
        if _is_absence(error):
            raise FileNotFoundError(name) from None
        cause: BaseException = error
        while isinstance(cause, FileNotFoundError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if not isinstance(cause, OSError):
            raise StorageError(f"{name}: cannot be read: {_shortened(cause)}") from error
        known = cause.errno is not None and cause.errno > 0
        why = os.strerror(cause.errno or 0).lower() if known else _shortened(cause)
        raise StorageError(f"{name}: cannot be reached: {why}.") from error


def _is_absence(error: Exception) -> bool:
    """Whether a file is missing; over HTTP, fsspec reports every failure as a missing file."""
    if not isinstance(error, FileNotFoundError):
        return False
    cause = error.__cause__
    if type(cause).__module__.startswith("aiohttp"):
        return getattr(cause, "status", None) in (404, 410)
    return isinstance(cause, FileNotFoundError) or not isinstance(cause, OSError)


def _shortened(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
