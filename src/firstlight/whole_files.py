"""Files written whole or not at all: what a trace needs of it, without the records of runs."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write to a temporary name beside `path`, then rename.

    What is no file (a pipe, a device) is written to as it is; of a link, what it points to.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file():
        try:
            with open(path, "wb") as file:
                file.write(data)
        except OSError as error:
            error.filename = str(path)  # a write does not say where
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
