"""The text of a line that a trace names, read when a report is made: the program is not disturbed.

Only of files that are as they were when the program started: another line would be worse than none.
"""

from __future__ import annotations

import os

from firstlight.trace.read.model import SourceLine, Trace

_MAX_LENGTH = 90
#: The start of a process is known to ten milliseconds, and its file may be written right before it.
_GRACE_SECONDS = 1.0
_MAX_DECORATORS = 10
_DEFINITIONS = ("def ", "async def ", "class ")


def source_of(file: str, started_at: float | None) -> str:
    """A file as the program had it, which started at this time; empty: it cannot be known."""
    if started_at is None or not os.path.isabs(file):  # redacted, or no file at all
        return ""
    try:
        if os.stat(file).st_mtime > started_at + _GRACE_SECONDS:
            return ""
        with open(file, encoding="utf-8", errors="replace") as source:
            return source.read()
    except OSError:
        return ""


class SourceLines:
    """Lines of the files that a trace names; each file is read once."""

    def __init__(self, trace: Trace) -> None:
        self._started_at = trace.started_at
        self._files: dict[str, list[str]] = {}

    def of(self, place: SourceLine | None) -> str:
        """The line without its indent, cut where it is long; empty: it cannot be shown."""
        if place is None:
            return ""
        if place.file not in self._files:
            self._files[place.file] = source_of(place.file, self._started_at).splitlines()
        lines = self._files[place.file]
        line = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
        if line.startswith("@"):  # a function begins with what decorates it
            rest = map(str.strip, lines[place.line : place.line + _MAX_DECORATORS])
            line = next((text for text in rest if text.startswith(_DEFINITIONS)), line)
        return line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]}…"
