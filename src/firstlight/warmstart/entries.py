"""The entries of the cache: one file each, written atomically and verified when read.

An entry's name is a digest of its key, and its modification time is that of its last use.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from contextlib import suppress
from random import random

from firstlight.warmstart.folder import is_trusted
from firstlight.warmstart.sealed import seal, value_of

#: Suffixes of files that are not entries.
LEASE, UNFINISHED = ".lease", ".unfinished"
_ABANDONED_SECONDS = 86_400.0
#: On average, the folder is swept once per this share of the bound written.
_SWEEP_SHARE = 1 / 16


class Entries:
    """The entries for one kind of machine, in folders named by their first two digits.

    root: holds the folders of all kinds of machines. max_bytes: the bound of all of them together.
    """

    def __init__(self, root: str, kind: str, max_bytes: int) -> None:
        self.kind = kind
        self.folder = os.path.join(root, kind)
        self._root = root
        self._max_bytes = max_bytes

    def path(self, key: str) -> str:
        return os.path.join(self.folder, name_of(key))

    def read(self, key: str) -> bytes | None:
        """The value, or None; an entry that is damaged or not this user's is removed."""
        path = self.path(key)
        try:
            # NONBLOCK: opening a pipe would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            _remove(path)  # a link, which could point to any file of this user
            return None
        try:
            value = _checked(descriptor, self.kind, key)
            if value is None:
                _remove(path)
            else:
                with suppress(OSError):  # a read-only folder
                    os.utime(descriptor)
            return value
        finally:
            os.close(descriptor)

    def write(self, key: str, value: bytes) -> None:
        self.keep(key, seal(self.kind, key, value))

    def keep(self, key: str, entry: bytes) -> None:
        """Store or replace an entry, and occasionally sweep the folder."""
        if len(entry) > self._max_bytes:
            return
        self.place(key, entry)
        # Drawn at random, so that processes need no shared count.
        if random() * self._max_bytes * _SWEEP_SHARE < len(entry):
            self.sweep()

    def place(self, key: str, entry: bytes) -> None:
        """Store or replace an entry without regard to the bound."""
        path = self.path(key)
        unfinished = f"{path}.{os.urandom(6).hex()}{UNFINISHED}"
        try:
            # Without fsync: the checksum detects an entry torn by a power failure.
            with open(create(unfinished), "wb") as file:
                if not is_trusted(os.fstat(file.fileno())):  # some mounts set another owner
                    raise PermissionError(errno.EPERM, "others could change what is stored there")
                file.write(entry)
            os.replace(unfinished, path)
        except BaseException:
            _remove(unfinished)
            raise

    def sweep(self) -> int:
        """Remove the least recently used entries beyond the bound, and abandoned files.

        Returns the bytes of the remaining entries.
        """
        entries, total = [], 0
        for path, status in files_below(self._root):
            if path.endswith((LEASE, UNFINISHED)):
                if time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    _remove(path)
                continue
            entries.append((status.st_mtime_ns, status.st_size, path))
            total += status.st_size
        for _, size, path in sorted(entries):
            if total <= self._max_bytes * (1 - _SWEEP_SHARE):
                break
            _remove(path)
            total -= size
        return total


def name_of(key: str) -> str:
    """The path of an entry in the folder of its kind."""
    name = hashlib.sha256(key.encode()).hexdigest()
    return f"{name[:2]}/{name[2:]}"


def create(path: str) -> int:
    """Create a file, with its folder if needed; FileExistsError if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return os.open(path, flags, 0o600)


def _checked(descriptor: int, kind: str, key: str) -> bytes | None:
    """The value of an entry; None if it is damaged, for another key, or not this user's."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not is_trusted(status):
        return None
    with open(descriptor, "rb", closefd=False) as file:
        return value_of(file.read(), kind, key)


def files_below(folder: str) -> list[tuple[str, os.stat_result]]:
    """All files below a folder, from which other processes may be removing some."""
    found = []
    with suppress(OSError), os.scandir(folder) as names:
        for name in names:
            if name.is_dir(follow_symlinks=False):
                found += files_below(name.path)
            else:
                with suppress(OSError):
                    found.append((name.path, name.stat(follow_symlinks=False)))
    return found


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
