"""Threads for batches, which never keep the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class Workers:
    """Runs each piece of work at once, on an idle thread or a new one.

    Work that never ends keeps its thread, not those of other work. The threads are daemons: those
    of `concurrent.futures` are waited for when the interpreter exits.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[Work | None]] = []
        self._closed = False

    def run(self, work: Work) -> None:
        """Start it; `work` must not raise."""
        try:
            inbox = self._idle.pop()  # the one that ended last
        except IndexError:
            inbox = SimpleQueue()
            threading.Thread(target=self._run, args=(inbox,), name=self._name, daemon=True).start()
        inbox.put(work)

    def close(self) -> None:
        """Let idle threads end, and each other one after its work."""
        self._closed = True
        while self._idle:
            self._idle.pop().put(None)

    def _run(self, inbox: SimpleQueue[Work | None]) -> None:
        while (work := inbox.get()) is not None:
            work()
            del work  # its arrays are not kept until the next one
            self._idle.append(inbox)
            if self._closed:
                self.close()
