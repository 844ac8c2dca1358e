"""A place for many snapshots: a directory here, or a URL.

PLACE/<id>/…              a snapshot
PLACE/<id>.tar            its archive, where asked for
PLACE/catalogue/…         what `firstlight snapshots` reads; only a cache
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Protocol

from firstlight.snapshot.archive import write_archive
from firstlight.snapshot.errors import SnapshotError, StorageError
from firstlight.snapshot.layout import INDEX, is_id, require_safe
from firstlight.snapshot.sources import Directory, Source


class Store(Protocol):
    """What publishing and the catalogue need of a place."""

    name: str

    def ids(self) -> list[str]: ...
    def source(self, snapshot_id: str) -> Source: ...
    def put(self, snapshot_id: str, files: dict[str, bytes]) -> bool: ...
    def read(self, name: str, most_bytes: int) -> bytes | None: ...
    def read_many(self, names: list[str], most_bytes: int) -> dict[str, bytes]: ...
    def write(self, name: str, data: bytes) -> None: ...
    def write_archive(self, snapshot_id: str, files: dict[str, bytes]) -> str: ...


def open_store(location: str | Path) -> Store:
    """The store in a directory, which need not exist yet, or at a URL."""
    text = os.fspath(location)
    if "://" in text and not text.startswith("file://"):
        from firstlight.snapshot.remote import RemoteStore

        return RemoteStore(text)
    return LocalStore(Path(text.removeprefix("file://")))


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
        """Write all into a temporary folder, then rename it: there is no half snapshot. False: is
        there already."""
        final = self.path / snapshot_id
        if (final / INDEX).exists():
            return False
        temporary: Path | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(prefix=".publishing-", dir=self.path))
            for path, data in files.items():
                _write_below(temporary, path, data)
            os.chmod(temporary, 0o755)
            os.rename(temporary, final)
            _sync(self.path)
        except OSError as error:
            if (final / INDEX).exists():  # somebody else published the same in this moment
                return False
            raise StorageError(f"{final}: cannot be written: {error.strerror}.") from None
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        return True

    def read(self, name: str, most_bytes: int) -> bytes | None:
        """A file by its name in the store, or None if it is not there or too large."""
        try:
            return Directory(self.path).read(name, most_bytes)
        except (SnapshotError, FileNotFoundError):  # the catalogue is a cache: what is odd is none
            return None

    def read_many(self, names: list[str], most_bytes: int) -> dict[str, bytes]:
        """Those of the files that are there."""
        found = ((name, self.read(name, most_bytes)) for name in names)
        return {name: data for name, data in found if data is not None}

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file: to a temporary name, then renamed."""
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.parent.resolve().is_relative_to(self.path.resolve()):
                raise StorageError(f"{path.parent} leads out of {self.path}: nothing was written.")
            _replace(path, data)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None

    def write_archive(self, snapshot_id: str, files: dict[str, bytes]) -> str:
        """The archive beside the snapshot; the same bytes if it is there already."""
        path = self.path / f"{snapshot_id}.tar"
        try:
            with tempfile.NamedTemporaryFile(dir=self.path, delete=False) as file:
                write_archive(file, snapshot_id, files)
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None
        return str(path)


def _write_below(folder: Path, path: str, data: bytes) -> None:
    require_safe(path)
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
