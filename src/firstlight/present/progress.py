"""Progress between processes: one rewritten line on a terminal, plain lines elsewhere.

Nothing is drawn while a process is measured: a spinner would take CPU time from it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from firstlight.present.plain_text import printable


class Named(Protocol):
    """Anything with an id, such as a case."""

    @property
    def id(self) -> str: ...


class LiveLine:
    """One line that is rewritten on a terminal, nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.live = stream.isatty() and not os.environ.get("CI")

    def show(self, text: str) -> None:
        """Replace the line."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self.write(f"\r\x1b[2K{printable(text)[:width]}")

    def clear(self) -> None:
        """Remove the line, before something else is printed."""
        self.show("")

    def write(self, text: str) -> None:
        # If the reader has gone (`2>&1 | head`), the work continues.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


class Progress:
    """Counts processes and estimates the remaining time from those that have run."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._line = LiveLine(stream)
        self._clock = clock
        self._spent: dict[str, float] = {}  # seconds of the latest process of each case
        self._current: str | None = None
        self._began = clock()

    def before(self, number: int, jobs: Sequence[tuple[Named, str, int]]) -> None:
        """Called before process `number` of `jobs`, which are (case, kind, index)."""
        now = self._clock()
        if self._current is not None:
            self._spent[self._current] = now - self._began
        case, kind, _ = jobs[number]
        self._current, self._began = case.id, now
        what = {"check": "checking", "prime": "filling the cache of"}.get(kind, "timing")
        left = self._left([case.id for case, _, _ in jobs[number:]])
        text = f"[{number + 1}/{len(jobs)}] {what} {printable(case.id)}{left}"
        if self._line.live:
            self._line.show(text)
        else:
            self._line.write(text + "\n")

    def _left(self, coming: Sequence[str]) -> str:
        """The remaining time: per process the latest time of its case, or the mean of all."""
        if not self._spent:
            return ""
        mean = sum(self._spent.values()) / len(self._spent)
        seconds = sum(self._spent.get(case, mean) for case in coming)
        return f", about {seconds / 60:.0f} min left" if seconds > 90 else f", {seconds:.0f} s left"

    def close(self) -> None:
        if self._current is not None:
            self._line.clear()
