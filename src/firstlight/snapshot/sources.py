"""Sources of snapshots: a directory, an archive, a URL. No link is followed, nothing unpacked.

A source yields its files one by one, the index first, or reads a single one by name. It opens only
regular files: anything else (a link, a pipe) is reported and left alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from firstlight.snapshot.errors import (
    ChangedSnapshotError,
    HostileSnapshotError,
    SnapshotError,
    StorageError,
    UnusableSnapshotError,
)
from firstlight.snapshot.layout import INDEX, LIMITS, is_id, require_safe

#: Errors of opening a link, a folder or a socket instead of a file.
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO}


class Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Item:
    """An entry of a snapshot: a file with its content, or a description of what it is instead."""

    path: str
    content: Reader | None
    odd: str | None = None  # "a symbolic link" and the like


class Source(Protocol):
    """A place that contains one snapshot."""

    name: str
    sees_all: bool  # whether `walk` also yields files that are not in the index

    def named_id(self) -> str | None:
        """The id that is the name of the place, or None if its name is no id."""

    def walk(self) -> Iterator[Item]:
        """All entries, the index first; each content must be read before the next item."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """One file."""


def read_whole(content: Reader, path: str, max_bytes: int) -> bytes:
    """The whole content; raises if it is longer than `max_bytes`."""
    data = read_up_to(content, max_bytes + 1)
    if len(data) > max_bytes:
        raise HostileSnapshotError(f"{path}: more than the limit of {max_bytes} bytes.")
    return data


def read_up_to(content: Reader, size: int) -> bytes:
    """`size` bytes, or fewer at the end."""
    parts = []
    while size > 0 and (part := content.read(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Directory:
    sees_all = True

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    def named_id(self) -> str | None:
        name = self.path.resolve().name
        return name if is_id(name) else None

    def walk(self) -> Iterator[Item]:
        found: dict[str, str | None] = {}
        for path, odd in self._everything(self.path, ""):
            found[path] = odd
            if len(found) > 2 * LIMITS.files:
                raise HostileSnapshotError(f"{self.name}: more than {LIMITS.files} files.")
        for path in sorted(found, key=lambda path: (path != INDEX, path)):
            if found[path] is not None:
                yield Item(path, None, found[path])
                continue
            try:
                file = self._open(path)
            except OSError as error:
                raise self._unreadable(path, error) from None
            with file:
                yield Item(path, file)

    def _everything(self, folder: Path, prefix: str) -> Iterator[tuple[str, str | None]]:
        """(path, what it is if not a file) below `folder`, no deeper than a snapshot is."""
        with os.scandir(folder) as found:
            for entry in found:
                path = prefix + entry.name
                if entry.is_symlink():
                    yield path, "a symbolic link"
                elif entry.is_file(follow_symlinks=False):
                    yield path, None
                elif not entry.is_dir(follow_symlinks=False):
                    yield path, "a device, a pipe or a socket"
                elif path.count("/") < 5:
                    below = list(self._everything(Path(entry.path), path + "/"))
                    yield from below or [(path, "an empty folder")]
                else:
                    yield path, "a folder in a folder in a folder"

    def _open(self, path: str) -> IO[bytes]:
        """Open a file through real folders only, even if one is replaced by a link meanwhile."""
        *folders, name = path.split("/")
        # NONBLOCK: opening a named pipe would otherwise wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for folder in folders:
                inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            file = os.open(name, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise HostileSnapshotError(f"{self.name}: {path} is not a regular file.")
        return open(file, "rb")

    def read(self, path: str, max_bytes: int) -> bytes:
        require_safe(path)
        try:
            with self._open(path) as file:
                return read_whole(file, path, max_bytes)
        except FileNotFoundError:
            raise missing_file(self.name, path) from None
        except OSError as error:
            raise self._unreadable(path, error) from None

    def _unreadable(self, path: str, error: OSError) -> SnapshotError:
        if error.errno in _NO_FILE:
            return HostileSnapshotError(f"{self.name}: {path} is not a file: {error.strerror}.")
        return StorageError(f"{self.name}/{path}: cannot be read: {error.strerror}.")


def missing_file(name: str, path: str) -> SnapshotError:
    """The error for a missing file."""
    if path == INDEX:
        return UnusableSnapshotError(
            f"{name}: no {INDEX}: not a snapshot, or one whose publishing was interrupted."
        )
    return ChangedSnapshotError(f"{name}: {path} is missing.")


def require_same(source: Source, files: Mapping[str, bytes]) -> None:
    """Refuse an existing snapshot that does not consist of exactly these files."""
    odd = _first_difference(source, files)
    if odd is not None:
        raise StorageError(f"{source.name} exists but is damaged: {odd}. Move it away.")


def _first_difference(source: Source, files: Mapping[str, bytes]) -> str | None:
    missing = dict(files)
    for item in source.walk():
        data = missing.pop(item.path, None)
        if item.content is None:
            return f"{item.path!r:.150} is {item.odd}"
        if data is None:
            return f"{item.path!r:.150} was added"
        if read_up_to(item.content, len(data) + 1) != data:
            return f"{item.path} was changed"
    return f"{min(missing)} is missing" if missing else None
