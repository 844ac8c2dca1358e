"""Locations of snapshots and stores (a path, an archive, a URL, a prefix of an id), and the store
in a local directory.

PLACE/<id>/…              a snapshot
PLACE/<id>.tar            its archive, with --archive
PLACE/catalogue/…         what `firstlight snapshots` reads; only a cache
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

from firstlight.snapshot.archive import ARCHIVES, Archive
from firstlight.snapshot.errors import SnapshotError, StorageError, UnusableSnapshotError
from firstlight.snapshot.layout import is_id, require_safe
from firstlight.snapshot.sources import Directory, Source, require_same

if TYPE_CHECKING:
    from firstlight.snapshot.remote import RemoteStore

#: A prefix of an id that is completed from what the place contains.
_BEGINNING = re.compile(r"[0-9a-f]{4,63}")
#: A URL that lacks a slash and would otherwise name a local folder.
_NEARLY_URL = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gc?s|az|abfs|https?|file|memory):)(?!/)", re.IGNORECASE
)
#: Prefix of files and folders that are being written, or that a killed publisher left.
_TEMPORARY = ".publishing-"
#: Younger ones may belong to a running publisher.
_LEFT_BEHIND_SECONDS = 24 * 3600


Store: TypeAlias = "LocalStore | RemoteStore"


def full_location(location: str | Path) -> str:
    """The location; if its last part is a prefix of an id, completed from what the place has."""
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
    names = [n for n in names if n.startswith(beginning)]
    fitting = sorted(n for n in names if is_id(n[:64]) and n[64:] == dot + ending)
    if len(fitting) > 1:
        raise UnusableSnapshotError(
            f"{text}: {len(fitting)} snapshots there begin with this ({fitting[0][:16]}…, "
            f"{fitting[1][:16]}…). Give more digits."
        )
    return f"{folder}{slash}{fitting[0]}" if fitting else text


def open_source(location: str | Path) -> Source:
    """The source for a directory, an archive, or a URL that fsspec knows."""
    text = full_location(location)
    path = local_path(text)
    if path is None:
        from firstlight.snapshot.remote import open_remote

        return open_remote(text)
    if path.is_dir():
        return Directory(path)
    if not path.is_file():
        raise UnusableSnapshotError(f"{path}: no such directory or archive.")
    if path.name.endswith(ARCHIVES):
        return Archive(str(path), lambda: open(path, "rb"))
    raise UnusableSnapshotError(f"{path}: not an archive. Give a snapshot or its .tar.")


def local_path(text: str) -> Path | None:
    """The path of a place on this machine, or None for a URL; refuses what is nearly one."""
    if not text:
        raise StorageError("'' names no place. Give a directory (. for this one) or a URL.")
    nearly = _NEARLY_URL.match(text)
    if nearly is not None:
        scheme, slash = nearly.group().split(":")
        rest = text[nearly.end() :]
        meant = slash + rest if scheme.lower() == "file" else f"{scheme}://{rest}"
        raise StorageError(f"{text}: did you mean {meant}? (For a folder of that name: ./{text})")
    if not text.lower().startswith("file://"):
        return None if "://" in text else Path(text)
    rest = text[len("file://") :]
    if not rest.startswith("/"):
        meant = rest.removeprefix("localhost")
        raise StorageError(f"{text}: file:// needs an absolute path. Did you mean {meant}?")
    return Path(rest)


def open_store(location: str | Path) -> Store:
    """The store in a directory, which need not exist yet, or at a URL."""
    text = os.fspath(location)
    path = local_path(text)
    if path is None:
        from firstlight.snapshot.remote import RemoteStore

        return RemoteStore(text)
    return LocalStore(path)


class LocalStore:
    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    def ids(self) -> list[str]:
        try:
            with os.scandir(self.path) as found:
                return sorted(e.name for e in found if is_id(e.name) and not e.is_symlink())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error.strerror}.") from None

    def source(self, snapshot_id: str) -> Source:
        return Directory(self.path / snapshot_id)

    def put(self, snapshot_id: str, files: dict[str, bytes]) -> bool:
        """Write into a temporary folder, then rename it. False if these bytes already exist."""
        final = self.path / snapshot_id
        if self._has(final, files):
            return False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_left_behind()
            with tempfile.TemporaryDirectory(
                prefix=_TEMPORARY, dir=self.path, ignore_cleanup_errors=True
            ) as temporary:
                for path, data in files.items():
                    require_safe(path)
                    target = Path(temporary, path)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with open(target, "xb") as file:
                        _write_all(file, data)
                os.chmod(temporary, 0o755)
                os.rename(temporary, final)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)
        except OSError as error:
            if self._has(final, files):  # another process has just published the same
                return False
            raise StorageError(f"{final}: cannot be written: {error.strerror}.") from None
        return True

    def _has(self, final: Path, files: dict[str, bytes]) -> bool:
        if not os.path.lexists(final):
            return False
        if final.is_symlink() or not final.is_dir():
            raise StorageError(f"{final} exists and is not a folder. Move it away.")
        require_same(Directory(final), files)
        return True

    def _remove_left_behind(self) -> None:
        for path in self.path.glob(f"{_TEMPORARY}*"):
            with suppress(OSError):  # gone meanwhile
                if time.time() - path.lstat().st_mtime < _LEFT_BEHIND_SECONDS:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """A file by its name in the store, or None if it is missing, odd or too large."""
        try:
            return Directory(self.path).read(name, max_bytes)
        except (SnapshotError, FileNotFoundError):
            return None

    def read_many(self, names: list[str], max_bytes: int) -> dict[str, bytes]:
        found = ((name, self.read(name, max_bytes)) for name in names)
        return {name: data for name, data in found if data is not None}

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file: to a temporary name, then renamed."""
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(self.path.resolve()):
                raise StorageError(f"{path.parent} leads out of {self.path}: nothing written.")
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
            try:
                with open(descriptor, "wb") as file:
                    _write_all(file, data)
                    os.fchmod(file.fileno(), 0o644)
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None


def _write_all(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
