"""A lock that lets one process at a time work in a folder."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def hold(folder: Path) -> IO[bytes] | None:
    """Lock a folder until the returned file is closed or the process ends; None if it is locked."""
    lock = open(folder / ".lock", "ab")  # noqa: SIM115 (the lock lasts until it is closed)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock
