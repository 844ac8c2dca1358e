"""A log that survives its process: one line of JSON an event, written as it happens."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA, VERSION = "firstlight.trace", 1


class LogFile:
    """Appends events to a file; a process that was forked continues in a file of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pid = self._descriptor = -1

    def write(self, event: dict[str, Any]) -> None:
        # Not at the top: json is loaded when there is something to say, which is after the first
        # import of the program, and so in nobody's way.
        import json

        if os.getpid() != self._pid:
            self._open()
        line = json.dumps(event, separators=(",", ":"), default=str) + "\n"
        # One call for a whole line: a kill leaves it there or not.
        os.write(self._descriptor, line.encode("utf-8", "backslashreplace"))

    def _open(self) -> None:
        os.makedirs(self._folder, exist_ok=True)
        self._pid = os.getpid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._descriptor = os.open(log_path(self._folder, self._pid), flags, 0o600)


def log_path(folder: str, pid: int) -> str:
    """The file of a process of this machine."""
    # Two machines that share the folder may give two processes the same number.
    return os.path.join(folder, f"{os.uname().nodename}-{pid}.jsonl")
