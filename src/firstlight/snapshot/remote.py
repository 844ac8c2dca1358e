"""URLs, through fsspec: S3 and what speaks like it, memory, and for reading also HTTP."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import IO, Any

from firstlight.snapshot.archive import Reader, write_archive
from firstlight.snapshot.errors import HostileSnapshotError, StorageError
from firstlight.snapshot.layout import (
    INDEX,
    LIMITS,
    SIGNATURE,
    Limits,
    is_id,
    parse_index,
    require_safe,
)
from firstlight.snapshot.locations import ARCHIVES
from firstlight.snapshot.sources import (
    Archive,
    Item,
    Source,
    exactly,
    missing,
    read_up_to,
    require_same,
)

_EXTRAS = {"s3": "s3", "s3a": "s3"}
#: They have no folders, and to ask for one could make a bucket that nobody wanted.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "az"}


def filesystem_of(url: str) -> tuple[Any, str]:
    """(file system, path in it) of a URL; says what to install where a protocol needs more."""
    import fsspec

    protocol = url.split("://", 1)[0]
    try:
        # Listings are asked for anew: others publish into the same place.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)  # type: ignore[no-any-return]
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        how = f"pip install 'firstlight[{extra}]'" if extra else str(error)
        raise StorageError(f"{url}: this protocol needs another package: {how}") from None
    except ValueError as error:
        raise StorageError(f"{url}: {error}") from None


def open_remote(url: str) -> Source:
    """The snapshot at a URL: a folder, or an archive."""
    filesystem, root = filesystem_of(url)
    if url.endswith(ARCHIVES):
        return Archive(url, lambda: _open_archive(filesystem, root, url))
    return Files(filesystem, root, url)


def _open_archive(filesystem: Any, path: str, url: str) -> IO[bytes]:
    try:
        found: IO[bytes] = filesystem.open(path, "rb")
    except Exception as error:
        if is_absence(error):
            raise StorageError(f"{url}: no such archive.") from None
        raise unreachable(url, error) from error
    return found


class Files:
    """A file system of fsspec: S3 and its kind, memory, HTTP."""

    def __init__(self, filesystem: Any, root: str, name: str) -> None:
        self._filesystem, self._root, self.name = filesystem, root.rstrip("/"), name

    def named_id(self) -> str | None:
        name = self._root.rsplit("/", 1)[-1]
        return name if is_id(name) else None

    def sees_all(self) -> bool:
        protocol = self._filesystem.protocol
        return not {"http", "https"} & ({protocol} if isinstance(protocol, str) else set(protocol))

    def walk(self, limits: Limits = LIMITS) -> Iterator[Item]:
        names = self._names(limits)
        for path in sorted(names, key=lambda path: (path != INDEX, path)):
            try:
                file = self._filesystem.open(f"{self._root}/{path}", "rb")
            except Exception as error:
                if is_absence(error):
                    continue
                raise unreachable(f"{self.name}/{path}", error) from error
            with file:
                yield Item(path, 0, _Distant(file, f"{self.name}/{path}"))

    def _names(self, limits: Limits) -> list[str]:
        if not self.sees_all():
            index = parse_index(self.read(INDEX, limits.index_bytes), limits)
            return [INDEX, SIGNATURE, *index.files]
        try:
            found = self._filesystem.find(self._root)
        except FileNotFoundError:
            found = []
        except Exception as error:
            raise unreachable(self.name, error) from error
        if len(found) > 2 * limits.files:
            raise HostileSnapshotError(f"{self.name}: more than {limits.files} files.")
        base = self._filesystem._strip_protocol(self._root).rstrip("/") + "/"
        return [name.removeprefix(base) for name in found]

    def _head(self, path: str, size: int) -> bytes | None:
        try:
            with self._filesystem.open(f"{self._root}/{path}", "rb") as file:
                return read_up_to(file, size)
        except Exception as error:
            if is_absence(error):
                return None
            raise unreachable(f"{self.name}/{path}", error) from error

    def read(self, path: str, max_bytes: int) -> bytes:
        require_safe(path)
        data = self._head(path, max_bytes + 1)
        if data is None:
            raise missing(self.name, path)
        return exactly(io.BytesIO(data), path, max_bytes)


class _Distant:
    """A file far away, whose reading can fail at any moment."""

    def __init__(self, file: Reader, name: str) -> None:
        self._file, self._name = file, name

    def read(self, size: int, /) -> bytes:
        try:
            return self._file.read(size)
        except Exception as error:
            raise unreachable(self._name, error) from error


class RemoteStore:
    """A place for many snapshots at a URL."""

    def __init__(self, url: str) -> None:
        self.name = url.rstrip("/")
        self._filesystem, root = filesystem_of(url)
        self._root = root.rstrip("/")

    def ids(self) -> list[str]:
        """Names of the folders that could be snapshots; one that is half written is among them."""
        try:
            found = self._filesystem.ls(self._root, detail=False)
        except Exception as error:
            if is_absence(error):
                return []
            raise unreachable(self.name, error) from error
        names = (str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)
        return sorted(name for name in names if is_id(name))

    def source(self, snapshot_id: str) -> Source:
        path = f"{self._root}/{snapshot_id}"
        return Files(self._filesystem, path, f"{self.name}/{snapshot_id}")

    def put(self, snapshot_id: str, files: dict[str, bytes]) -> bool:
        """Write a snapshot, its index last: without it, it is none. False: it is there already."""
        self._require_writable()
        if self.read(f"{snapshot_id}/{INDEX}", LIMITS.index_bytes) is not None:
            require_same(self.source(snapshot_id), files)
            return False
        for path in sorted(files, key=lambda path: (path == INDEX, path)):
            self.write(f"{snapshot_id}/{path}", files[path])
        return True

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """A file by its name in the store, or None if it is not there."""
        source = Files(self._filesystem, self._root, self.name)
        data = source._head(name, max_bytes + 1)
        return None if data is None or len(data) > max_bytes else data

    def read_many(self, names: list[str], max_bytes: int) -> dict[str, bytes]:
        """Those of the files that are there, fetched side by side where the protocol can."""
        paths = {f"{self._root}/{name}": name for name in names}
        if not paths:
            return {}
        found = self._filesystem.cat(list(paths), on_error="return")
        plain = {self._filesystem._strip_protocol(path): name for path, name in paths.items()}
        return {
            plain[path]: data
            for path, data in found.items()
            if isinstance(data, bytes) and path in plain and len(data) <= max_bytes
        }

    def _require_writable(self) -> None:
        if {"http", "https"} & {*self._protocols()}:
            raise StorageError(
                f"{self.name}: this place is read-only. Publish to a "
                "directory or to s3://…, from which a web server can serve it."
            )

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file; a reader sees the old or the new one."""
        path = f"{self._root}/{name}"
        try:
            if not _OBJECT_STORES & {*self._protocols()}:
                self._filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            with self._filesystem.open(path, "wb") as file:
                file.write(data)
        except NotImplementedError:
            raise StorageError(f"{self.name}: this place is not writable.") from None
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise StorageError(
                f"{self.name}/{name}: cannot be written: {type(error).__name__}: {said}"
            ) from error

    def _protocols(self) -> tuple[str, ...]:
        protocol = self._filesystem.protocol
        return (protocol,) if isinstance(protocol, str) else tuple(protocol)

    def write_archive(self, snapshot_id: str, files: dict[str, bytes]) -> str:
        target = io.BytesIO()
        write_archive(target, snapshot_id, files)
        self.write(f"{snapshot_id}.tar", target.getvalue())
        return f"{self.name}/{snapshot_id}.tar"


def is_absence(error: BaseException) -> bool:
    """Whether an error says that a file is not there; over HTTP every trouble comes as that."""
    if not isinstance(error, FileNotFoundError):
        return False
    cause = error.__cause__
    if type(cause).__module__.startswith("aiohttp"):
        return getattr(cause, "status", None) in (404, 410)
    return isinstance(cause, FileNotFoundError) or not isinstance(cause, OSError)


def unreachable(name: str, error: BaseException) -> StorageError:
    """Errors of storage libraries have types of their own; what they say is passed on, in short."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    said = " ".join(str(error).split())[:200]
    if isinstance(error, OSError):
        why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else said
        return StorageError(f"{name}: cannot be reached: {why}.")
    return StorageError(f"{name}: cannot be read: {type(error).__name__}: {said}")
