"""A place for many snapshots: a directory here, or a URL.

PLACE/<id>/…              a snapshot
PLACE/<id>.tar            its archive, where asked for
PLACE/catalogue/…         what `firstlight snapshots` reads; only a cache
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Protocol

from firstlight.snapshot.errors import SnapshotError, StorageError
from firstlight.snapshot.layout import is_id, require_safe
from firstlight.snapshot.locations import local_path
from firstlight.snapshot.sources import Directory, Source, require_same

#: What is being written has such a name; what is left of a publisher that was killed, too.
_TEMPORARY = ".publishing-"
#: Younger ones may belong to somebody who has not locked them yet.
_LEFT_BEHIND_SECONDS = 3600


class Store(Protocol):
    """What publishing and the catalogue need of a place."""

    name: str

    def ids(self) -> list[str]: ...
    def source(self, snapshot_id: str) -> Source: ...
    def put(self, snapshot_id: str, files: dict[str, bytes]) -> bool: ...
    def read(self, name: str, max_bytes: int) -> bytes | None: ...
    def read_many(self, names: list[str], max_bytes: int) -> dict[str, bytes]: ...
    def write(self, name: str, data: bytes) -> None: ...


def open_store(location: str | Path) -> Store:
    """The store in a directory, which need not exist yet, or at a URL."""
    text = os.fspath(location)
    path = local_path(text)
    if path is None:
        from firstlight.snapshot.remote import RemoteStore

        return RemoteStore(text)
    return LocalStore(path)


class LocalStore:
    """A directory on this machine."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    def ids(self) -> list[str]:
        """Names of the folders that could be snapshots."""
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
        """Write all into a temporary folder, then rename it: there is no half snapshot.

        False: it is there already, with these bytes.
        """
        final = self.path / snapshot_id
        if self._has(final, files):
            return False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_left_behind()
            with self._temporary_folder() as temporary:
                for path, data in files.items():
                    require_safe(path)
                    (temporary / path).parent.mkdir(parents=True, exist_ok=True)
                    with open(temporary / path, "xb") as file:
                        _write_all(file, data)
                os.chmod(temporary, 0o755)
                os.rename(temporary, final)
            _sync(self.path)
        except OSError as error:
            if self._has(final, files):  # somebody else published the same in this moment
                return False
            raise StorageError(f"{final}: cannot be written: {error.strerror}.") from None
        return True

    def _has(self, final: Path, files: dict[str, bytes]) -> bool:
        if not os.path.lexists(final):
            return False
        if final.is_symlink() or not final.is_dir():
            raise StorageError(
                f"{final} exists and is not a folder. Move it away, then publish again."
            )
        require_same(Directory(final), files)
        return True

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        """A folder that is locked while it is written, and gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.path))
        try:
            with _opened(folder) as descriptor:
                _lock(descriptor)
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_left_behind(self) -> None:
        """Remove what publishers that were killed have left: old, and locked by nobody."""
        for path in self.path.glob(f"{_TEMPORARY}*"):
            try:
                if time.time() - path.lstat().st_mtime < _LEFT_BEHIND_SECONDS:
                    continue
                with _opened(path) as descriptor:
                    if not _lock(descriptor):
                        continue
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink(missing_ok=True)
            except OSError:  # a link, or gone
                continue

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """A file by its name in the store, or None if it is not there or too large."""
        try:
            return Directory(self.path).read(name, max_bytes)
        except (SnapshotError, FileNotFoundError):  # the catalogue is a cache: what is odd is none
            return None

    def read_many(self, names: list[str], max_bytes: int) -> dict[str, bytes]:
        """Those of the files that are there."""
        found = ((name, self.read(name, max_bytes)) for name in names)
        return {name: data for name, data in found if data is not None}

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file: to a temporary name, then renamed."""
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(self.path.resolve()):
                raise StorageError(f"{path.parent} leads out of {self.path}: nothing was written.")
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)
            try:
                with open(descriptor, "wb") as file:
                    _lock(file.fileno())
                    _write_all(file, data)
                    os.fchmod(file.fileno(), 0o644)
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
            _sync(path.parent)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None


def _write_all(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _lock(descriptor: int) -> bool:
    """Whether the file is ours now; where a file system has no locks it is nobody's."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A file descriptor of a file or folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    with _opened(folder.resolve()) as descriptor:
        os.fsync(descriptor)
