"""Where a snapshot is read from: a directory, an archive, a URL. Nothing is followed or unpacked.

Every source gives its files one by one (`walk`), the index first, and a single one by its name
(`read`). It reads no more than it is told to, and hands out only plain files: what else there is
(a link, a pipe) is named as such and left alone.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from firstlight.snapshot import archive
from firstlight.snapshot.archive import Inflated, Reader
from firstlight.snapshot.errors import (
    ChangedSnapshotError,
    HostileSnapshotError,
    StorageError,
    UnusableSnapshotError,
)
from firstlight.snapshot.layout import (
    INDEX,
    LIMITS,
    Limits,
    id_of,
    is_id,
    parse_index,
    require_safe,
)

#: So many digits of an id, and it is asked which one is meant.
_BEGINNING = re.compile(r"[0-9a-f]{4,63}")
ARCHIVES = (".tar", ".tar.gz", ".tgz")
#: What opening a link, a folder or a socket where a file should be ends with.
_NO_FILE = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO}
#: A URL that lacks a slash, which would be the name of a folder here.
_NEARLY_URL = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gc?s|az|abfs|https?|file|memory):)(?!/)", re.IGNORECASE
)


@dataclass(frozen=True)
class Item:
    """Something that lies in a snapshot: a file with its content, or what it is instead of one."""

    path: str
    bytes: int  # as the place says; what counts is what is read
    content: Reader | None
    odd: str | None = None  # "a symbolic link" and the like


class Source(Protocol):
    """A place that holds one snapshot."""

    name: str

    def named_id(self) -> str | None:
        """The id that the place claims by its name, or None where it has another name."""

    def walk(self, limits: Limits = LIMITS) -> Iterator[Item]:
        """Everything that lies there, the index first; each content is read before the next."""

    def read(self, path: str, most_bytes: int) -> bytes:
        """One file."""

    def sees_all(self) -> bool:
        """Whether `walk` would also meet a file that the index does not name."""


def full_location(location: str | Path) -> str:
    """The location with the beginning of an id, its last part, completed from what lies there.

    What exists under the name as it is given is left as it is.
    """
    text = os.fspath(location)
    folder, slash, name = text.rstrip("/").rpartition("/")
    beginning, dot, ending = name.partition(".")
    if not _BEGINNING.fullmatch(beginning):
        return text
    path = local_path(text)
    if path is not None:
        names = [] if path.exists() or not path.parent.is_dir() else os.listdir(path.parent)
    else:
        from firstlight.snapshot.remote import RemoteStore

        names = [f"{found}{dot}{ending}" for found in RemoteStore(folder).ids()]
    fitting = sorted(
        n for n in names if n.startswith(beginning) and is_id(n[:64]) and n[64:] == dot + ending
    )
    if len(fitting) > 1:
        raise UnusableSnapshotError(
            f"{text}: {len(fitting)} snapshots there begin like this ({fitting[0][:16]}…, "
            f"{fitting[1][:16]}…). Give more digits."
        )
    return f"{folder}{slash}{fitting[0]}" if fitting else text


def open_source(location: str | Path) -> Source:
    """The source for a directory, an archive, or a URL that fsspec knows.

    Of an id, the last part, so many digits will do that no other snapshot there begins with them.
    """
    text = full_location(location)
    path = local_path(text)
    if path is None:
        from firstlight.snapshot.remote import open_remote

        return open_remote(text)
    if path.is_dir():
        return Directory(path)
    if path.is_file() and path.name.endswith(ARCHIVES):
        return Archive(str(path), lambda: open(path, "rb"))
    if path.is_file():
        raise UnusableSnapshotError(
            f"{path}: a file that is no archive. Give the directory of a snapshot, or its .tar."
        )
    raise UnusableSnapshotError(f"{path}: no such directory or archive.")


def local_path(text: str) -> Path | None:
    """The path of a place on this machine, or None for a URL; refuses what is nearly one."""
    if not text:
        raise StorageError("'' names no place. Give a directory (. for this one) or a URL.")
    nearly = _NEARLY_URL.match(text)
    if nearly is not None:
        scheme, slash = nearly.group().split(":")
        rest = text[nearly.end() :]
        meant = slash + rest if scheme.lower() == "file" else f"{scheme}://{rest}"
        raise StorageError(f"{text}: is {meant} meant? (A folder of that name: ./{text})")
    if not text.lower().startswith("file://"):
        return None if "://" in text else Path(text)
    rest = text[len("file://") :]
    if not rest.startswith("/"):
        meant = rest.partition("/")[2] if rest.startswith("localhost/") else rest
        raise StorageError(
            f"{text}: a path after file:// begins with a slash. Is "
            f"{'/' if meant != rest else ''}{meant} meant?"
        )
    return Path(rest)


def exactly(content: Reader, path: str, most_bytes: int) -> bytes:
    """All of a content, refused where it is longer than allowed."""
    data = read_up_to(content, most_bytes + 1)
    if len(data) > most_bytes:
        raise HostileSnapshotError(f"{path}: more than the {most_bytes} bytes that are read of it.")
    return data


def read_up_to(content: Reader, size: int) -> bytes:
    """`size` bytes, or fewer at the end."""
    parts = []
    while size > 0 and (part := content.read(min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class Directory:
    """A directory on this machine."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    def named_id(self) -> str | None:
        name = self.path.resolve().name
        return name if is_id(name) else None

    def sees_all(self) -> bool:
        return True

    def walk(self, limits: Limits = LIMITS) -> Iterator[Item]:
        found: list[tuple[str, str | None]] = []
        for path, odd in self._everything(self.path, ""):
            found.append((path, odd))
            if len(found) > 2 * limits.files:
                raise HostileSnapshotError(f"{self.name}: more than {limits.files} files.")
        for path, odd in sorted(found, key=lambda pair: (pair[0] != INDEX, pair[0])):
            if odd is not None:
                yield Item(path, 0, None, odd)
                continue
            try:
                file = self._open(path)
            except OSError as error:
                raise StorageError(
                    f"{self.name}/{path}: cannot be read: {error.strerror}."
                ) from None
            with file:
                yield Item(path, os.fstat(file.fileno()).st_size, file)

    def _everything(self, folder: Path, prefix: str) -> Iterator[tuple[str, str | None]]:
        """Names below `folder`; folders are entered only as deep as a snapshot is."""
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
        """The file, reached through real folders only, also if one is replaced meanwhile."""
        folders, name = path.split("/")[:-1], path.split("/")[-1]
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
            raise HostileSnapshotError(f"{self.name}: {path} is no plain file.")
        return open(file, "rb")

    def read(self, path: str, most_bytes: int) -> bytes:
        require_safe(path)
        try:
            with self._open(path) as file:
                return exactly(file, path, most_bytes)
        except FileNotFoundError:
            raise missing(self.name, path) from None
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise StorageError(
                    f"{self.name}/{path}: cannot be read: {error.strerror}."
                ) from None
            raise HostileSnapshotError(
                f"{self.name}: {path} is no plain file ({error.strerror})."
            ) from None


_Entry = tuple[str, str, int, archive.Content]  # id, path, bytes, content


class Archive:
    """A tar archive as `publish` writes it, plain or within gzip, read from its beginning."""

    def __init__(self, name: str, opening: Callable[[], IO[bytes]]) -> None:
        self.name, self._opening = name, opening

    def named_id(self) -> str | None:
        """The id in its headers; or the one in the name of the file, if that is the wrong one."""
        stem = self.name.rstrip("/").rsplit("/", 1)[-1].split(".", 1)[0]
        with self._opening() as file, _naming(self.name):
            for snapshot_id, path, _, content in self._entries(file, LIMITS):
                if not is_id(stem) or stem == snapshot_id:
                    return snapshot_id
                computed = id_of(exactly(content, path, LIMITS.index_bytes))
                return snapshot_id if stem == computed else stem
        return None

    def sees_all(self) -> bool:
        return True

    def walk(self, limits: Limits = LIMITS) -> Iterator[Item]:
        ids, paths = set(), []
        with self._opening() as file:
            entries = self._entries(file, limits)
            while (entry := self._next(entries)) is not None:
                snapshot_id, path, size, content = entry
                ids.add(snapshot_id)
                paths.append(path)
                if len(ids) > 1:
                    raise HostileSnapshotError(f"{self.name}: files of two snapshots.")
                yield Item(path, size, _Packed(content, self.name))
        if paths != archive.ordered(paths):
            raise UnusableSnapshotError(f"{self.name}: its files are not in their order.")

    def read(self, path: str, most_bytes: int) -> bytes:
        for item in self.walk():
            if item.path == path and item.content is not None:
                return exactly(item.content, path, most_bytes)
        raise missing(self.name, path)

    def _next(self, entries: Iterator[_Entry]) -> _Entry | None:
        with _naming(self.name):
            return next(entries, None)

    def _entries(self, file: IO[bytes], limits: Limits) -> Iterator[_Entry]:
        magic = file.read(2)
        file.seek(0)
        plain: Reader = Inflated(file, limits) if magic == b"\x1f\x8b" else file
        return archive.entries(plain, limits)


class _Packed:
    """A file in an archive, which can be cut off or damaged at any byte."""

    def __init__(self, content: Reader, name: str) -> None:
        self._content, self._name = content, name

    def read(self, size: int, /) -> bytes:
        with _naming(self._name):
            return self._content.read(size)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """What is wrong with an archive is told with its name."""
    try:
        yield
    except UnusableSnapshotError as error:
        raise type(error)(f"{name}: {error}") from None


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
            return [INDEX, "signature.json", *index.files]
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

    def read(self, path: str, most_bytes: int) -> bytes:
        require_safe(path)
        data = self._head(path, most_bytes + 1)
        if data is None:
            raise missing(self.name, path)
        return exactly(io.BytesIO(data), path, most_bytes)


class _Distant:
    """A file far away, whose reading can fail at any moment."""

    def __init__(self, file: Reader, name: str) -> None:
        self._file, self._name = file, name

    def read(self, size: int, /) -> bytes:
        try:
            return self._file.read(size)
        except Exception as error:
            raise unreachable(self._name, error) from error


def missing(name: str, path: str) -> Exception:
    """What is raised for a file that is not there."""
    if path == INDEX:
        return UnusableSnapshotError(
            f"{name}: no {INDEX}, so this is no snapshot, or one whose publishing was interrupted."
        )
    return ChangedSnapshotError(f"{name}: {path} is missing.")


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
