"""A log that survives its process: one line of JSON an event, written as it happens.

All that it needs is bound when it is loaded, and json is not needed at all: the program may replace
functions of the standard library, and may have a module `json` of its own.
"""

from __future__ import annotations

import os
from _json import encode_basestring_ascii as quoted
from os import close, fstat, getpid, write
from os import open as open_file

try:
    from fcntl import F_DUPFD_CLOEXEC, fcntl
except ImportError:  # no system where descriptors can be moved
    fcntl = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA, VERSION = "firstlight.trace", 1
#: Descriptors are taken from here on: those of the program keep the numbers that they have alone.
_HIGH = 400


class LogFile:
    """Appends events to a file; a process that was forked continues in a file of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._machine = os.uname().nodename
        self._pid = self._descriptor = -1
        self._file: tuple[int, int] | None = None  # by which the system knows it

    def write(self, event: dict[str, Any]) -> None:
        # A program may close all descriptors (a daemon does), and the next file that it opens
        # gets the number of ours: what is there now is asked before every line.
        if getpid() != self._pid or self._file is None or self._now() != self._file:
            self._open()
        # One call for a whole line: a kill leaves it there or not.
        write(self._descriptor, (encoded(event) + "\n").encode("ascii"))

    def _now(self) -> tuple[int, int] | None:
        try:
            about = fstat(self._descriptor)
        except OSError:
            return None
        return (about.st_dev, about.st_ino)

    def _open(self) -> None:
        if self._file is not None and self._now() == self._file:
            close(self._descriptor)  # that of the process which this one was forked from
        self._file, self._pid = None, getpid()
        self._descriptor = self._opened(log_path(self._folder, self._pid, self._machine))
        self._file = self._now()

    def _opened(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        try:
            low = open_file(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self._folder, exist_ok=True)
            low = open_file(path, flags, 0o600)
        if fcntl is None:
            return low
        try:
            high = fcntl(low, F_DUPFD_CLOEXEC, _HIGH)
        except OSError:  # so many are not allowed
            return low
        close(low)
        return high


def log_path(folder: str, pid: int, machine: str | None = None) -> str:
    """The file of a process of this machine."""
    # Two machines that share the folder may give two processes the same number.
    return os.path.join(folder, f"{machine or os.uname().nodename}-{pid}.jsonl")


def encoded(value: Any) -> str:
    """JSON of it; what JSON does not know is written as its text."""
    if isinstance(value, str):
        return quoted(value)
    if value is None or value is True or value is False:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join([encoded(one) for one in value])}]"
    if isinstance(value, dict):
        members = [f"{quoted(str(key))}:{encoded(one)}" for key, one in value.items()]
        return f"{{{','.join(members)}}}"
    return quoted(str(value))


def _number(value: float) -> str:
    text = float.__repr__(value)
    # As Python's json writes and reads them, beyond what JSON allows.
    return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(text, text)
