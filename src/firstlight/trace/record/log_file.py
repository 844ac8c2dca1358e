"""A log that survives its process: one line of JSON per event, written as it happens.

It binds everything it needs when it is loaded, and does not import json: the program may replace
functions of the standard library, and may have its own module `json`.
"""

from __future__ import annotations

import os
from _json import encode_basestring_ascii, make_encoder
from _thread import RLock
from errno import ENOSPC
from fcntl import F_DUPFD_CLOEXEC, fcntl
from os import SEEK_CUR, SEEK_END, close, fstat, getpid, lseek, write
from os import open as open_file

from firstlight.trace.record.log_format import log_path

# As in json.dumps, in this order: no check for cycles, str for unknown types, encoder of strings,
# no indent, separators, keys neither sorted nor skipped, infinities as in Python.
_encode = make_encoder(None, str, encode_basestring_ascii, None, ":", ",", False, False, True)
#: Our descriptors start here, so that the program's have the same numbers as without us.
_HIGH = 400


class LogFile:
    """Appends events to a file, from any thread. A forked process gets its own file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._machine = os.uname().nodename
        self._pid = self._descriptor = -1
        self._end = -1  # where in the file the next line begins
        self._file: tuple[int, int] | None = None  # its identity for the system
        self._is_cut = False  # the last write left an incomplete line
        self._lock = RLock()  # a signal handler may write while its thread does

    def write(self, event: dict[str, object]) -> None:
        line = (encoded(event) + "\n").encode("ascii")
        if getpid() != self._pid:
            self._lock = RLock()  # the parent's may be held by a thread that does not exist here
        with self._lock:
            # A program may close all descriptors (a daemon does), and its next file gets our
            # number: before every line, check that the descriptor is at the end of our file.
            if getpid() != self._pid or not self._is_ours():
                self._open()
            # One call for a whole line: a kill leaves all of it or nothing.
            line = b"\n" + line if self._is_cut else line
            written = write(self._descriptor, line)
            self._end += written  # afterwards: a signal handler may have written in between
            self._is_cut = written < len(line)
            if self._is_cut:
                raise OSError(ENOSPC, "only part of a line could be written")

    def _is_ours(self) -> bool:
        try:
            if lseek(self._descriptor, 0, SEEK_CUR) == self._end:  # the fast check
                return True
            if _identity(self._descriptor) != self._file:
                return False
            # A forked process or a signal handler has written to it.
            self._end = lseek(self._descriptor, 0, SEEK_END)
        except OSError:  # closed, or a pipe
            return False
        return True

    def _open(self) -> None:
        if self._end >= 0 and self._is_ours():
            close(self._descriptor)  # the parent's, after a fork
        self._end, self._pid, self._is_cut = -1, getpid(), False
        self._descriptor = self._opened(log_path(self._folder, self._pid, self._machine))
        self._file = _identity(self._descriptor)
        self._end = lseek(self._descriptor, 0, SEEK_END)

    def _opened(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            low = open_file(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(self._folder, exist_ok=True)
            low = open_file(path, flags, 0o600)
        try:
            high = fcntl(low, F_DUPFD_CLOEXEC, _HIGH)
        except OSError:  # the limit of descriptors is lower
            return low
        close(low)
        return high


def _identity(descriptor: int) -> tuple[int, int]:
    known = fstat(descriptor)
    return known.st_dev, known.st_ino


def encoded(value: object) -> str:
    """The value as JSON; types that JSON does not know become their `str`."""
    return "".join(_encode(value, 0))
