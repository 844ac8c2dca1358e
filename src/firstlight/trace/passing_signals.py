"""Passes signals on to the program that runs under us, so that each reaches it exactly once.

A signal to the process group (from the terminal, from `timeout`) reaches the program and us; one to
us alone must be passed on; and the system does not say which it was. A witness does: another
process of the group, in which signals stay pending. A signal pending there too was sent to all.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from types import FrameType

#: Without a witness, these are assumed to come from the terminal, and so to reach all.
_OF_THE_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_SIGNALS = (*_OF_THE_TERMINAL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
#: The system signals the processes of a group one after the other.
_ALL_HAVE_IT_SECONDS = 0.01


class _Witness:
    """A process that does nothing, and ends when its input does: when we end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the witness inherits it
        try:
            self._process = subprocess.Popen(["cat"], stdin=pipe, stdout=nowhere, stderr=nowhere)
        except OSError:  # no `cat` on this system
            pass
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def has(self, number: int) -> bool | None:
        """Whether a signal is pending in the witness; None if unknown."""
        if self._process is None:
            return None
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text("ascii", "replace")
            waiting = int(status.partition("\nShdPnd:")[2].split()[0], 16)
        except (OSError, ValueError, IndexError):
            return None
        return bool(waiting >> (number - 1) & 1)

    def end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()


class Child:
    """The program, which gets the signals once it has been started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []
        self.witness = _Witness()

    def started(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        for number in self._waiting:
            process.send_signal(number)

    def handle(self, number: int, _: FrameType | None) -> None:
        if self._process is None:
            self._waiting.append(number)
        elif not self._came_to_all(number):
            self._process.send_signal(number)

    def _came_to_all(self, number: int) -> bool:
        seen = self.witness.has(number)
        if seen is False:
            sleep(_ALL_HAVE_IT_SECONDS)
            seen = self.witness.has(number)
        if seen:  # the signal stays pending: the next one needs another witness
            self.witness.end()
            self.witness = _Witness()
        return number in _OF_THE_TERMINAL if seen is None else seen


@contextmanager
def passing_signals() -> Iterator[Child]:
    """Pass signals on to the program. Ignored ones stay ignored (nohup)."""
    child = Child()
    passed = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, child.handle) for number in passed}
    try:
        yield child
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
        child.witness.end()
