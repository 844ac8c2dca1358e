"""Uploads to a shared place in the background, bounded in memory and in time at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable

_MAX_WAITING_BYTES = 1 << 28
_LAST_SECONDS, _IDLE_SECONDS = 3.0, 5.0


class Uploads:
    """send: called in a thread with the arguments of `add`; it must not raise."""

    def __init__(self, send: Callable[[str, bytes, str | None], None]) -> None:
        self._send = send
        self._forget()
        # If a thread were sending during a fork, its locks (imports too) would stay locked in the
        # child.
        os.register_at_fork(before=lambda: self.flush(_LAST_SECONDS), after_in_child=self._forget)
        atexit.register(self.flush, _LAST_SECONDS)

    def _forget(self) -> None:
        """Start empty: a process that forks sends its own uploads itself."""
        self._waiting: list[tuple[str, bytes, str | None]] = []
        self._is_running = False
        self._is_flushed_at_end = False
        self._changed = threading.Condition()

    def add(self, name: str, entry: bytes, lease: str | None) -> None:
        """Send an entry soon; if too much is waiting, only release its lease."""
        with self._changed:
            if sum(len(e) for _, e, _ in self._waiting) + len(entry) > _MAX_WAITING_BYTES:
                name, entry = "", b""
            self._waiting.append((name, entry, lease))
            self._changed.notify_all()
            self._flush_at_end_of_worker()
            if not self._is_running:
                try:
                    threading.Thread(target=self._run, daemon=True).start()
                    self._is_running = True
                except RuntimeError:  # Python is about to exit and starts no threads
                    self._waiting.clear()

    def _flush_at_end_of_worker(self) -> None:
        """Forked workers of multiprocessing do not run atexit's functions, but their own list.

        They clear that list when they start, so register with the first upload.
        """
        workers = sys.modules.get("multiprocessing.util")
        if workers is not None and not self._is_flushed_at_end:
            workers.Finalize(None, self.flush, (_LAST_SECONDS,), exitpriority=0)
        self._is_flushed_at_end = True

    def flush(self, seconds: float) -> None:
        """Wait until everything has been sent, at most for so long."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._waiting and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _run(self) -> None:
        """Send, then wait a while for more, which can use the same connection."""
        while True:
            with self._changed:
                if not self._waiting and not self._changed.wait(_IDLE_SECONDS):
                    self._is_running = False
                    return
                if not self._waiting:
                    continue
                upload = self._waiting[0]
            self._send(*upload)
            with self._changed:
                self._waiting.pop(0)
                self._changed.notify_all()
