"""Atomic writes: a file is written whole or not at all. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """`write_bytes` for text, as UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary name beside `path`, then rename.

    A pipe or a device is written to directly; a link is followed.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        try:
            with open(path, "wb") as file:
                file.write(data)
        except OSError as error:
            error.filename = str(path)  # errors of `write` do not name the file
            raise
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
