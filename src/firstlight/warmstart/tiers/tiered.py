"""`tiered`: NumPy answers the first calls while a thread compiles, then the compiled program."""

from __future__ import annotations

import functools
import inspect
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from firstlight.warmstart.tiers.interpreter import AbandonedError, Interpreter

#: What takes NumPy less than this is not slowed down by a compiler: the first call, and as many
#: as follow in this time. A program that is over by then need not wait for one.
_HEAD_START_SECONDS = 0.1
#: After so long in NumPy, calls wait for the compiler, which both would only keep from working:
#: lowering is Python, and so is the interpreter.
_PATIENCE_SECONDS = 0.5


class Tier(Enum):
    """What has answered a call."""

    NUMPY = "numpy"  # operation by operation, nothing compiled
    COMPILED = "compiled"


class WhyOff(Enum):
    """Why the first call was compiled at once."""

    EFFECTS = "it calls back into Python, which must happen once"
    SEVERAL_DEVICES = "its arrays are on several devices"
    NOT_UNDERSTOOD = "NumPy cannot run its program, which this JAX writes in another way"


@dataclass(frozen=True)
class Switch:
    """What happened to calls of one signature (shapes and types of the arguments) so far."""

    signature: str
    first_tier: Tier
    why_off: WhyOff | None
    numpy_calls: int  # answered before the compiled program was there
    switched: bool
    compile_seconds: float | None  # in the background


def tiered(f: Callable[..., Any], **jit_options: Any) -> Tiered:
    """`jax.jit(f)`, whose first calls do not wait for the compiler.

    Calls are answered by NumPy, which runs the program of `f` operation by operation, while a
    thread compiles; from the first call after that, by the compiled program. NumPy sums in another
    order: results agree to rounding, not bit by bit. Every signature (shapes and types of the
    arguments) begins like this. Compiling starts a tenth of a second after the first call, if that
    lasts so long, or after the second; whichever is ready first answers, so a program that is slow
    in NumPy takes little longer than its compile time. A compile error is raised by the next call.

    Under `jax.grad`, `jax.vmap` or an outer `jit` it is an ordinary jitted function, compiled with
    what surrounds it: apply `tiered` last, as in `tiered(jax.grad(f))`.

    Args:
        f: The function. It compiles at once, with a warning, if it calls back into Python or its
            arguments are on several devices.
        jit_options: As for `jax.jit`.
    """
    return Tiered(f, jit_options)


@dataclass(frozen=True)
class _Static:
    """Which arguments are part of the program: by position and by name."""

    positions: frozenset[int]
    names: frozenset[str]

    def left_out(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The other arguments."""
        return (
            tuple(arg for i, arg in enumerate(args) if i not in self.positions),
            {name: value for name, value in kwargs.items() if name not in self.names},
        )


def static_arguments(f: Callable[..., Any], jit_options: dict[str, Any]) -> _Static:
    """As `jax.jit` understands its options: each position has its name, and the other way round."""
    numbers, names = jit_options.get("static_argnums"), jit_options.get("static_argnames")
    positions = {numbers} if isinstance(numbers, int) else {*(numbers or ())}
    named = {names} if isinstance(names, str) else {*(names or ())}
    try:
        known = list(inspect.signature(f).parameters)
    except (TypeError, ValueError):
        known = []
    positions = {i + len(known) if i < 0 else i for i in positions}
    for i, name in enumerate(known):
        if i in positions or name in named:
            positions.add(i)
            named.add(name)
    return _Static(frozenset(positions), frozenset(named))


class _NewSignatureError(Exception):
    """JAX was about to trace during a call."""


class Tiered:
    """A function in tiers; `switches` is what happened to each signature."""

    def __init__(self, f: Callable[..., Any], jit_options: dict[str, Any]) -> None:
        import jax

        functools.update_wrapper(self, f)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._states: dict[int, _State] = {}
        self._unsettled: list[_State] = []  # not compiled, or failed
        #: Whether calls may go to JAX, which would compile by itself what is traced and unsettled.
        self._is_settled = False
        self._static = static_arguments(f, jit_options)

        @functools.wraps(f)
        def traced(*args: Any, **kwargs: Any) -> Any:
            # JAX calls this for a new signature only, so that a call of a known one costs nothing
            # more than JAX's own dispatch.
            if not getattr(self._local, "may_trace", False):
                raise _NewSignatureError
            return f(*args, **kwargs)

        self._jitted = jax.jit(traced, **jit_options)

    @property
    def switches(self) -> tuple[Switch, ...]:
        with self._lock:
            return tuple(state.switch() for state in self._states.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_settled:
            try:
                return self._jitted(*args, **kwargs)
            except _NewSignatureError:
                pass
        return self._answer(args, kwargs)

    def wait(self) -> None:
        """Wait for the compiler, for all signatures so far."""
        for state in list(self._states.values()):
            if state.why_off is None:
                state.start(_When.NOW)
                state.over.wait()

    def _answer(self, args: Any, kwargs: Any) -> Any:
        import jax

        leaves = jax.tree_util.tree_leaves(self._static.left_out(args, kwargs))
        with self._tracing():
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return self._jitted(*args, **kwargs)
            state = self._state(self._jitted.trace(*args, **kwargs), leaves)
            if state.why_off is None and state.is_slow:
                state.start(_When.NOW)
                state.over.wait()
            if state.why_off is None and not state.over.is_set():
                try:
                    return state.by_numpy(leaves)
                except AbandonedError:
                    pass
                except Exception:  # of ours: what the program computes raises nothing
                    state.why_off = WhyOff.NOT_UNDERSTOOD
                    self._warn(WhyOff.NOT_UNDERSTOOD)
                    state.start(_When.NOW)
                    state.over.wait()
            if state.error is not None:
                raise state.error
            # JAX finds what the thread has traced, lowered and compiled, or does it now.
            return self._jitted(*args, **kwargs)

    def _state(self, traced: Any, leaves: list[Any]) -> _State:
        with self._lock:
            for before in self._unsettled:  # this is not the first call any more
                before.start(_When.SOON)
            # JAX keeps one program per signature, and the state keeps that alive.
            known = self._states.get(id(traced.jaxpr))
            if known is not None:
                return known
            why_off = _why_off(traced, leaves)
            known = self._states[id(traced.jaxpr)] = _State(traced, why_off, self._settle)
            if why_off is None:
                self._is_settled = False
                self._unsettled.append(known)
                known.start(_When.IF_SLOW)
                return known
        self._warn(why_off)
        return known

    def _warn(self, why_off: WhyOff) -> None:
        name = getattr(self, "__name__", "f")
        text = f"firstlight: tiered({name}) compiles at once: {why_off.value}."
        warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _settle(self, state: _State) -> None:
        # JAX's dispatch remembers that tracing raised, and would take ten times as long for ever.
        getattr(self._jitted, "_clear_cache", lambda: None)()
        with self._lock:
            self._unsettled.remove(state)
            self._is_settled = not self._unsettled

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        before = getattr(self._local, "may_trace", False)
        self._local.may_trace = True
        try:
            yield
        finally:
            self._local.may_trace = before


def _why_off(traced: Any, leaves: list[Any]) -> WhyOff | None:
    if traced.jaxpr.effects:
        return WhyOff.EFFECTS
    devices = [leaf.sharding.device_set for leaf in leaves if hasattr(leaf, "sharding")]
    return WhyOff.SEVERAL_DEVICES if any(len(found) > 1 for found in devices) else None


class _When(Enum):
    """When a thread compiles."""

    IF_SLOW = auto()  # after the head start, unless NumPy has answered by then
    SOON = auto()  # after the head start, unless the program has ended by then
    NOW = auto()


class _State:
    """The calls of one signature, and the thread that compiles for them."""

    def __init__(
        self, traced: Any, why_off: WhyOff | None, settle: Callable[[_State], None]
    ) -> None:
        self.why_off = why_off
        self.over = threading.Event()  # compiled, or failed
        self.error: BaseException | None = None
        self._traced = traced
        self._program = traced.jaxpr
        self._numpy_calls = 0
        self._numpy_seconds = 0.0
        self._compile_seconds: float | None = None
        self._settle = settle
        self._answered = threading.Event()
        self._asked: set[_When] = set()
        self._is_started = False
        self._lock = threading.Lock()
        self._interpreter = Interpreter(self.over.is_set)

    @property
    def is_slow(self) -> bool:
        """Whether NumPy has had its time with this signature."""
        return self._numpy_seconds > _PATIENCE_SECONDS

    def start(self, when: _When) -> None:
        """Compile in a thread, once.

        Python waits for the thread at its end: XLA ends a process whose interpreter is gone.
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
        found = self._interpreter.run(self._program, leaves)
        self._numpy_seconds += time.monotonic() - begin
        kinds = [aval.dtype for aval in self._program.out_avals]
        results = [np.asarray(value, kind) for value, kind in zip(found, kinds, strict=True)]
        tree = jax.tree_util.tree_structure(self._traced.out_info)
        self._numpy_calls += 1
        self._answered.set()
        return tree.unflatten(jax.device_put(results))

    def _compile(self, when: _When) -> None:
        if when is _When.IF_SLOW and self._answered.wait(_HEAD_START_SECONDS):
            return
        if when is _When.SOON:
            self.over.wait(_HEAD_START_SECONDS)
            if not threading.main_thread().is_alive():
                return
        with self._lock:
            if self._is_started:
                return
            self._is_started = True
        begin = time.monotonic()
        try:
            self._traced.lower().compile()
        except Exception as error:
            self.error = error
        self._compile_seconds = time.monotonic() - begin
        self.over.set()
        if self.error is None:
            self._settle(self)

    def switch(self) -> Switch:
        avals = ", ".join(aval.str_short() for aval in self._program.in_avals)
        is_first = self.why_off is None and self._numpy_calls > 0
        first = Tier.NUMPY if is_first else Tier.COMPILED
        switched = self.over.is_set() and self.error is None
        counted = (self.why_off, self._numpy_calls, switched, self._compile_seconds)
        return Switch(f"({avals})", first, *counted)
