"""A folder that one process works in at a time."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


def hold(folder: Path) -> IO[bytes] | None:
    """Hold a folder until this file is closed or the process ends; None: another one holds it."""
    lock = open(folder / ".lock", "ab")  # noqa: SIM115 (held until it is closed)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock
