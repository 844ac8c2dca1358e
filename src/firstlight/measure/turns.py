"""Two measured processes that take turns with their warm calls: while one is timed, one waits.

Other programs on a machine come and go within seconds, and change the time of a call by half. Two
processes that are timed one after the other meet two machines; two that alternate every twentieth
of a second meet the same one. A turn is a byte in a pipe, passed from process to process without
the parent. If the other one is gone or silent, this one goes on alone, and what is measured from
then on is no longer said to be in turns.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from firstlight.measure.program import Job

#: Into so many windows the warm part is divided.
WINDOWS = 20


class Turns:
    """This process's side of it; without another process, one window and nothing to wait for."""

    def __init__(self, job: "Job") -> None:
        turn = job.get("turn")
        self.windows = 1 if turn is None else WINDOWS
        self.calls: list[int] = []  # made in each window that began with a turn
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
        """Pass the turn on, after so many calls."""
        if self._alone:
            return
        if calls:
            self.calls.append(calls)
        try:
            os.write(self._pass, b".")
        except OSError:
            self._leave()

    def close(self) -> None:
        """No turns any more: the other process need not wait."""
        if not self._alone:
            self._leave()

    def _received(self) -> bool:
        import select

        # The first turn comes after the other's cold start. Later ones are short: who waits longer
        # waits for a process that hangs, and would run out of its own time.
        seconds = self._seconds / 2 if self.calls else self._seconds
        ready, _, _ = select.select([self._wait], [], [], seconds)
        if ready and os.read(self._wait, 1):
            return True
        self._leave()
        return False

    def _leave(self) -> None:
        self._alone = True
        os.close(self._pass)  # at the end of the pipe the other one stops waiting, too
        os.close(self._wait)
