"""Profiles on demand: a trace for Perfetto and xprof, and the programs compiled last."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from firstlight.telemetry.warning_line import say_once

#: To wait for a profile in progress when the process ends.
_MAX_WRITING_SECONDS = 30.0


class BusyError(RuntimeError):
    """A profile is already in progress."""


class Profiles:
    """Profiles of this process, each in a new folder within `folder`."""

    def __init__(self, folder: str, last_compiled: Iterable[str]) -> None:
        self._folder = os.path.abspath(folder)
        self._last_compiled = last_compiled
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def take(self, seconds: float) -> dict[str, Any]:
        """Profile the process for some seconds; returns the folder and the files of programs."""
        if not self._lock.acquire(blocking=False):
            raise BusyError("a profile is in progress; ask again when it is done")
        try:
            name = f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}-{time.monotonic_ns()}"
            folder = os.path.join(self._folder, name)
            os.makedirs(folder, mode=0o700)
            self._trace(folder, seconds)
            return {"folder": folder, "hlo": self._write_programs(folder)}
        finally:
            self._lock.release()

    def take_on_signal(self, seconds: float) -> None:
        """Take a profile in a thread, and report it on stderr."""

        def take() -> None:
            try:
                taken = self.take(seconds)
                say_once(taken["folder"], f"profile written to {taken['folder']}")
            except Exception as error:
                say_once(f"profile {time.monotonic_ns()}", f"no profile: {error}")

        threading.Thread(target=take, name="firstlight profile", daemon=True).start()

    def close(self) -> None:
        """End a profile in progress, and wait until it is written."""
        self._stop.set()
        if self._lock.acquire(timeout=_MAX_WRITING_SECONDS):
            self._lock.release()

    def _trace(self, folder: str, seconds: float) -> None:
        import jax

        try:
            jax.profiler.start_trace(folder, create_perfetto_trace=True)
        except RuntimeError as error:  # the program itself is taking one
            raise BusyError(str(error)) from error
        try:
            self._stop.wait(seconds)
        finally:
            jax.profiler.stop_trace()

    def _write_programs(self, folder: str) -> list[str]:
        """Write the optimized HLO of the functions compiled last."""
        wanted = {f"jit_{name}" for name in list(self._last_compiled)}
        written = []
        for number, module in enumerate(_modules()):
            if _plain(module.name) in {_plain(name) for name in wanted}:
                path = os.path.join(folder, f"{_plain(module.name)}.{number}.hlo.txt")
                with open(path, "w") as file:
                    file.write(module.to_string())
                written.append(path)
        return written


def _modules() -> Iterable[Any]:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    for backend in dict(getattr(bridge, "_backends", {})).values():
        for executable in backend.live_executables():
            yield from executable.hlo_modules()


def _plain(name: str) -> str:
    """A name in XLA's spelling, which is also safe for files."""
    return "".join(c if c.isalnum() else "_" for c in name).strip("_")[:100]
