"""When the program outputs something: on its standard output, or to a file that it opens.

A second witness of the first result, since a value may be read and never shown. Streams and `open`
are watched only from the end of a compile to the next output, then restored.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from time import monotonic_ns

from firstlight.trace.record import calls
from firstlight.trace.record.program_errors import OURS, STANDARD_LIBRARY
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.record.replacements import Replacements, listened_to

_MAX_LINE = 4096  # characters of an endless line that are kept to look for a pattern


class Outputs:
    """Reports the first output after each compile, or the first line that matches a pattern.
    read: returns how many results have been read so far."""

    def __init__(self, recorder: Recorder, read: Callable[[], int]) -> None:
        self._recorder, self._read = recorder, read
        self._replaced = Replacements()
        self._streams: tuple[object, ...] = ()
        self._lines: dict[str, str] = {}  # by stream, the unfinished last line
        self._pattern: re.Pattern[str] | None = None
        wanted = recorder.first_result_pattern
        if wanted is not None and calls.named_line(wanted) is None:
            self._pattern = self._compiled(wanted)
            self.expect()

    def _compiled(self, pattern: str) -> re.Pattern[str] | None:
        try:
            return re.compile(pattern)
        except re.error as error:
            self._recorder.problem(f"FIRSTLIGHT_FIRST_RESULT: {error}: the pattern is ignored")
            return None

    def expect(self) -> None:
        """Watch for the next output."""
        if self._recorder.marked:
            return
        names = ("stdout", "stderr") if self._pattern else ("stdout",)
        streams = tuple(getattr(sys, name, None) for name in names)
        if self._replaced and streams == self._streams:
            return
        self.unwatch()  # the program may have replaced the streams
        self._streams, safely = streams, self._recorder.safely
        for name, stream in zip(names, streams, strict=True):
            write = getattr(stream, "write", None)
            if hasattr(stream, "__dict__") and callable(write):
                written = safely(partial(self._written, name))
                self._replaced.put(stream, "write", listened_to(write, written))
        if not self._pattern:
            ours = listened_to(builtins.open, safely(self._opened))
            for module in (builtins, io):
                self._replaced.put(module, "open", ours)

    def unwatch(self) -> None:
        self._replaced.undo()

    def _written(self, name: str, text: object = None, *_: object) -> None:
        if not self._replaced or type(text) is not str:
            return
        if self._pattern is not None:
            line = (self._lines.get(name, "") + text)[-_MAX_LINE:]
            self._lines[name] = line.rpartition("\n")[2]
            if self._pattern.search(line):
                self._recorder.mark("output", self._site())
                self.unwatch()
        # A progress bar has carriage returns; a result has digits.
        elif "\r" not in text and any(map(str.isdigit, text)):
            self._report(name)

    def _opened(self, file: object = None, mode: object = "r", *_: object, **__: object) -> None:
        if not self._replaced or not isinstance(file, (str, os.PathLike)):
            return
        if type(mode) is not str or {*"wxa+"}.isdisjoint(mode):
            return
        parts = os.path.abspath(os.fspath(file)).split(os.sep)
        kept_aside = any(part.startswith((".", "__pycache__")) for part in parts)
        if not kept_aside and parts[1] not in ("dev", "proc") and not self._is_of_jax():
            self._report("file")

    def _is_of_jax(self) -> bool:
        """Whether JAX itself writes: its persistent cache."""
        files = (frame.f_code.co_filename for frame in calls.stack(sys._getframe(1)))
        outer = (
            file for file in files if not file.startswith((OURS, "<frozen", *STANDARD_LIBRARY))
        )
        return next(outer, "").startswith(calls.jax_folders())

    def _report(self, stream: str) -> None:
        now = monotonic_ns()
        self.unwatch()
        reads = self._read()
        self._recorder.event("output", ns=now, stream=stream, site=self._site(), reads=reads)

    def _site(self) -> calls.Line | None:
        near, user = calls.sites(calls.stack(sys._getframe(1)))
        return user or near
