"""Times the first use of an accelerator, when JAX by default reserves most of its memory."""

from __future__ import annotations

import os
from _thread import get_ident
from time import monotonic_ns
from typing import Any

from firstlight.trace.record.program_errors import leave_out_caller
from firstlight.trace.record.recorder import Recorder
from firstlight.trace.record.replacements import Replacements, named_like


def started_backends() -> list[str]:
    """The platforms that JAX has started so far."""
    from jax._src import xla_bridge

    return list(getattr(xla_bridge, "_backends", ()))


class DeviceUse:
    """Times the first use, then restores what it replaced."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._replaced = Replacements()

    def watch(self, pxla: object) -> None:
        """Start. pxla: the module of JAX that places arrays and runs programs."""
        # Here JAX first asks a device for memory: it places an array, or runs a program.
        runs = getattr(pxla, "ExecuteReplicated", None)
        for owner, name in ((pxla, "batched_device_put"), (runs, "__call__")):
            original = getattr(owner, name, None)
            if original is not None:
                self._replaced.put(owner, name, self._timed(original))

    def stop(self) -> None:
        self._replaced.undo()

    def _timed(self, original: Any) -> object:
        def call(*arguments: Any, **named: Any) -> Any:
            is_first = bool(self._replaced)
            self.stop()
            begin = monotonic_ns()
            try:
                return original(*arguments, **named)
            except BaseException as error:
                leave_out_caller(error)
                raise
            finally:
                if is_first:
                    self._report(begin, monotonic_ns())

        return named_like(call, original)

    def _report(self, begin_ns: int, end_ns: int) -> None:
        platforms = [name for name in started_backends() if name != "cpu"]
        if not platforms:
            return
        asked = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "")
        allocator = os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower()
        reserves = asked not in ("false", "False", "0") and allocator != "platform"
        self._recorder.event(
            "device_use",
            platform=platforms[0],
            begin_ns=begin_ns,
            end_ns=end_ns,
            thread=get_ident(),
            reserves_memory=reserves,
        )
