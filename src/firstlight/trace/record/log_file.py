"""A log that survives its process: one line of JSON an event, written as it happens.

All that it needs is bound when it is loaded, and json is not needed at all: the program may replace
functions of the standard library, and may have a module `json` of its own.
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

# As json.dumps does it, in this order: no look for circles, what becomes of unknown types, how to
# write texts, no indent, separators, keys neither sorted nor left out, infinities as in Python.
_encode = make_encoder(None, str, encode_basestring_ascii, None, ":", ",", False, False, True)
#: Descriptors are taken from here on: those of the program keep the numbers that they have alone.
_HIGH = 400


class LogFile:
    """Appends events to a file, from any thread; a forked process has a file of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._machine = os.uname().nodename
        self._pid = self._descriptor = -1
        self._end = -1  # where in the file the next line begins
        self._file: tuple[int, int] | None = None  # by which the system knows it
        self._is_cut = False  # what was last written of it is no whole line
        self._lock = RLock()  # a handler of signals may write while its thread does

    def write(self, event: dict[str, object]) -> None:
        line = (encoded(event) + "\n").encode("ascii")
        if getpid() != self._pid:
            self._lock = RLock()  # that of the parent may be held by a thread that is not here
        with self._lock:
            # A program may close all descriptors (a daemon does), and the next file that it opens
            # gets the number of ours: before every line is looked whether this is where ours ends.
            if getpid() != self._pid or not self._is_ours():
                self._open()
            # One call for a whole line: a kill leaves it there or not.
            line = b"\n" + line if self._is_cut else line
            written = write(self._descriptor, line)
            self._end += written  # added afterwards: a handler may have written in between
            self._is_cut = written < len(line)
            if self._is_cut:
                raise OSError(ENOSPC, "only a part of a line could be written")

    def _is_ours(self) -> bool:
        try:
            if lseek(self._descriptor, 0, SEEK_CUR) == self._end:  # the faster way to know it
                return True
            if _identity(self._descriptor) != self._file:
                return False
            # A process that was forked has moved it on, or a handler of signals has.
            self._end = lseek(self._descriptor, 0, SEEK_END)
        except OSError:  # closed, or a pipe
            return False
        return True

    def _open(self) -> None:
        if self._end >= 0 and self._is_ours():
            close(self._descriptor)  # that of the process which this one was forked from
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
        except OSError:  # so many are not allowed
            return low
        close(low)
        return high


def _identity(descriptor: int) -> tuple[int, int]:
    known = fstat(descriptor)
    return known.st_dev, known.st_ino


def encoded(value: object) -> str:
    """JSON of it; what JSON does not know is written as its text."""
    return "".join(_encode(value, 0))
