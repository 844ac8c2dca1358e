"""What the writer and the readers of a log agree on; readers import nothing else of this room."""

from __future__ import annotations

import os

SCHEMA, VERSION = "firstlight.trace", 1
#: Suffix of the path of a static value that is shown as a whole: it differs if any part does.
WHOLE = " (as a whole)"
#: Shorter waits are summed without the line that waited.
WORTH_ASKING_NS = 100_000


def log_path(folder: str, pid: int, machine: str | None = None) -> str:
    """The file of a process of this machine."""
    # Machines that share the folder may give two processes the same number.
    return os.path.join(folder, f"{machine or os.uname().nodename}-{pid}.jsonl")


def package_of(file: str) -> str | None:
    """The installed package that a file belongs to; None if it belongs to none."""
    for folder in (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"):
        if folder in file:
            return file.rpartition(folder)[2].partition(os.sep)[0].removesuffix(".py")
    return None
