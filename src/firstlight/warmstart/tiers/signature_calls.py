"""The calls of one signature: their timing in NumPy, and the thread that compiles."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from firstlight.warmstart.tiers.interpreter import Interpreter

#: Compiling starts this much later, so that it does not slow down short calls in NumPy, and a
#: program that has ended by then does not wait for it.
_HEAD_START_SECONDS = 0.1
#: After so much time in NumPy, calls wait while the thread lowers: lowering and the interpreter are
#: both Python and would only delay each other. XLA's compiler does not need Python.
_PATIENCE_SECONDS = 0.5


class Tier(Enum):
    """What answers a call."""

    NUMPY = "numpy"  # operation by operation, nothing compiled
    COMPILED = "compiled"


class WhyOff(Enum):
    """Why a signature was compiled at once."""

    EFFECTS = "it calls back into Python, which must happen once"
    SEVERAL_DEVICES = "its arrays are on several devices"
    SLOWER_IN_NUMPY = "it was compiled before NumPy had answered when that was last measured"
    NOT_UNDERSTOOD = "NumPy cannot run its program, which this JAX writes in another way"


@dataclass(frozen=True)
class Switch:
    """What has happened so far to calls of one signature (shapes and types of the arguments)."""

    signature: str
    first_tier: Tier
    why_off: WhyOff | None
    numpy_calls: int  # answered before the compiled program was ready
    switched: bool
    numpy_call_seconds: float | None  # mean of those calls
    compile_seconds: float | None  # in the background

    @property
    def break_even_calls(self) -> int | None:
        """The number of calls from which on compiling takes less time than NumPy for all calls.

        Calls of the compiled program are assumed to take no time. None: not known (yet).
        """
        if not self.numpy_call_seconds or self.compile_seconds is None:
            return None
        return int(self.compile_seconds / self.numpy_call_seconds) + 1


class When(Enum):
    """When a thread compiles."""

    IF_SLOW = auto()  # after the head start, unless NumPy has answered by then
    SOON = auto()  # after the head start, unless the program has ended by then
    NOW = auto()


class SignatureCalls:
    """The calls of one signature, and the thread that compiles for them."""

    def __init__(
        self, traced: Any, why_off: WhyOff | None, settle: Callable[[SignatureCalls], None]
    ) -> None:
        self.why_off = why_off
        self.lowered = threading.Event()  # or failed
        self.over = threading.Event()  # compiled or failed
        self.error: BaseException | None = None
        self.program = traced.jaxpr
        self._traced = traced
        self._numpy_calls = 0
        self._numpy_seconds = 0.0
        self._compile_seconds: float | None = None
        self._settle = settle
        self._answered = threading.Event()
        self._asked: set[When] = set()
        self._is_started = False
        self._lock = threading.Lock()
        self._interpreter = Interpreter(self.over.is_set)

    @property
    def is_slow(self) -> bool:
        """Whether calls should wait for lowering."""
        return self._numpy_seconds > _PATIENCE_SECONDS

    def start(self, when: When) -> None:
        """Compile in a thread, once.

        Not a daemon: XLA aborts a process whose interpreter has ended.
        """
        with self._lock:
            if when in self._asked or self._is_started:
                return
            self._asked.add(when)
        name = "firstlight-tiered"
        threading.Thread(target=self._compile, args=(when,), name=name).start()

    def by_numpy(self, leaves: list[Any]) -> Any:
        import jax
        import numpy as np

        begin = time.monotonic()
        found = self._interpreter.run(self.program, leaves)
        self._numpy_seconds += time.monotonic() - begin  # not reached by abandoned calls
        kinds = [aval.dtype for aval in self.program.out_avals]
        results = [np.asarray(value, kind) for value, kind in zip(found, kinds, strict=True)]
        tree = jax.tree_util.tree_structure(self._traced.out_info)
        self._numpy_calls += 1
        self._answered.set()
        return tree.unflatten(jax.device_put(results))

    def _compile(self, when: When) -> None:
        if when is When.IF_SLOW and self._answered.wait(_HEAD_START_SECONDS):
            return
        if when is When.SOON:
            self.over.wait(_HEAD_START_SECONDS)
            if not threading.main_thread().is_alive():
                return
        with self._lock:
            if self._is_started:
                return
            self._is_started = True
        begin = time.monotonic()
        try:
            lowered = self._traced.lower()
            self.lowered.set()
            lowered.compile()
        except Exception as error:
            self.error = error
            self.lowered.set()
        self._compile_seconds = time.monotonic() - begin
        self.over.set()
        if self.error is None:
            self._settle(self)

    def switch(self) -> Switch:
        avals = ", ".join(aval.str_short() for aval in self.program.in_avals)
        is_first = self.why_off is None and self._numpy_calls > 0
        first = Tier.NUMPY if is_first else Tier.COMPILED
        switched = self.over.is_set() and self.error is None
        per_call = self._numpy_seconds / self._numpy_calls if self._numpy_calls else None
        counted = (self.why_off, self._numpy_calls, switched, per_call, self._compile_seconds)
        return Switch(f"({avals})", first, *counted)
