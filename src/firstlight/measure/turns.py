"""Two measured processes take turns with their warm calls: one is timed while the other waits.

Other programs come and go within seconds, and change the time of a call by up to a half. Processes
that are timed one after the other see different conditions; processes that alternate every few tens
of milliseconds see the same ones. A turn is a byte in a pipe, passed between the processes without
the parent. If the other process exits or hangs, this one continues alone, and its later calls do
not count as measured in turns.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from firstlight.measure.program import Job

#: Windows in the warm part.
WINDOWS = 20


class Turns:
    """The turns of this process. Without another process there is one window and no waiting."""

    def __init__(self, job: "Job") -> None:
        turn = job.get("turn")
        self.windows = 1 if turn is None else WINDOWS
        self.calls: list[int] = []  # in each window that began with a turn
        self._alone = turn is None
        if turn is not None:
            self._wait, self._pass, first = turn
            self._report = job["fd"]
            self._seconds = job["timeout_seconds"]
            self._waits = not first

    def begin(self) -> None:
        """Wait for a turn."""
        if self._alone:
            return
        if self._waits:
            if not self.calls:
                os.write(self._report, b"ready\n")
            self._alone = not self._received()
        self._waits = True

    def end(self, calls: int = 0) -> None:
        """Pass the turn on after this number of calls."""
        if self._alone:
            return
        if calls:
            self.calls.append(calls)
        try:
            os.write(self._pass, b".")
        except OSError:
            self._leave()

    def close(self) -> None:
        """Stop taking turns, so that the other process does not wait."""
        if not self._alone:
            self._leave()

    def _received(self) -> bool:
        import select

        # The first turn comes after the other's cold start. Later ones are short: a longer wait
        # means that the other process hangs, and would use up this one's time limit.
        seconds = self._seconds / 2 if self.calls else self._seconds
        ready, _, _ = select.select([self._wait], [], [], seconds)
        if ready and os.read(self._wait, 1):
            return True
        self._leave()
        return False

    def _leave(self) -> None:
        self._alone = True
        os.close(self._pass)  # the other process sees the end of the pipe and stops waiting
        os.close(self._wait)
