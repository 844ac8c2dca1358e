"""Sizes of executables on backends that do not tell them: of all that would be stored of each.

Writing one out takes a hundredth of its compile, so nobody waits for it before a first result: it
is done with the next sums of waits, or at the end.
"""

from __future__ import annotations

from firstlight.trace.record.program_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from firstlight.trace.record.recorder import Recorder

#: Shorter compiles have executables that nobody asks about.
_WORTH_WRITING_OUT_SECONDS = 0.05
#: More are not kept alive: a program may compile for hours and never look at a result.
_MOST_WAITING = 50


class Sizes:
    """Executables whose size is still to be found; they know no weak references."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: list[tuple[int, int, Any]] = []

    def later(self, executable: Any, thread: int, begin_ns: int, seconds: float) -> None:
        """Of the compile that began then in that thread, and took so long."""
        if seconds < _WORTH_WRITING_OUT_SECONDS:
            return
        self._waiting.append((thread, begin_ns, executable))
        if len(self._waiting) > _MOST_WAITING:
            self.write()

    def write(self) -> None:
        """Tell the sizes of those that wait, and let them go."""
        waiting, self._waiting = self._waiting, []
        for thread, begin_ns, executable in waiting:
            try:
                size = len(executable.serialize())
            except Exception as error:  # some cannot be written out
                pass_on(error)
                continue
            self._recorder.event("size", thread=thread, begin_ns=begin_ns, executable_bytes=size)

    def forget(self) -> None:
        """In a new process: they are of its parent."""
        self._waiting = []
