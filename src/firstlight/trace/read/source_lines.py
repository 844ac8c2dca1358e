"""The source lines that a trace names, read when a report is made, not in the traced program.

Files that changed since the program started are not read: a wrong line is worse than none.
"""

from __future__ import annotations

import os

from firstlight.trace.read.model import SourceLine, Trace

_MAX_LENGTH = 90
#: The start of a process is known to ten milliseconds, and its file may be written just before.
_GRACE_SECONDS = 1.0
_MAX_DECORATORS = 10
_DEFINITIONS = ("def ", "async def ", "class ")


def source_of(file: str, started_at: float | None) -> str:
    """The text of a file, if it was not changed since the program started; otherwise ""."""
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
    """Reads lines of the files that a trace names, each file once."""

    def __init__(self, trace: Trace) -> None:
        self._started_at = trace.started_at
        self._files: dict[str, list[str]] = {}

    def of(self, place: SourceLine | None) -> str:
        """The line without its indent, shortened; "" if it is not available."""
        if place is None:
            return ""
        if place.file not in self._files:
            self._files[place.file] = source_of(place.file, self._started_at).splitlines()
        lines = self._files[place.file]
        line = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
        if line.startswith("@"):  # the first line of a function is its first decorator
            rest = map(str.strip, lines[place.line : place.line + _MAX_DECORATORS])
            line = next((text for text in rest if text.startswith(_DEFINITIONS)), line)
        return line if len(line) <= _MAX_LENGTH else f"{line[:_MAX_LENGTH]}…"
