"""`tiered`: NumPy answers calls while a thread compiles, then the compiled program does."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

from firstlight.warmstart.tiers import remembered
from firstlight.warmstart.tiers.interpreter import AbandonedError
from firstlight.warmstart.tiers.signature_calls import SignatureCalls, Switch, Tier, When, WhyOff

P = ParamSpec("P")
R = TypeVar("R")


def tiered(f: Callable[P, R], **jit_options: object) -> Tiered[P, R]:
    """`jax.jit(f)`, whose first calls do not wait for the compiler.

    NumPy answers calls by running the program of `f` operation by operation, while a thread
    compiles; then the compiled program answers. NumPy sums in another order, so results agree to
    rounding, not bit by bit. Every signature (shapes and types of the arguments) starts like this.
    Compiling begins a tenth of a second after the first call, if that takes so long, or after the
    second. Whichever is ready first answers, so a program that is slow in NumPy takes little longer
    than its compile time. If the compiler was ready before the first answer, the user's cache
    folder remembers it for a week: the next signature and the next process compile at once, with a
    warning. A compile error is raised by the next call.

    Under `jax.grad`, `jax.vmap` or an outer `jit` it is an ordinary jitted function, compiled with
    the code around it: apply `tiered` last, as in `tiered(jax.grad(f))`.

    Args:
        f: The function. It compiles at once, with a warning, if it calls back into Python or its
            arguments are on several devices.
        jit_options: As for `jax.jit`.
    """
    return Tiered(f, jit_options)


def _static_arguments(
    f: Callable[..., object], jit_options: dict[str, Any]
) -> tuple[set[int], set[str]]:
    """Static arguments as `jax.jit` sees them: positions imply names, and names positions."""
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
    return positions, named


class _NewSignatureError(Exception):
    """JAX was about to trace in a call that may not."""


class Tiered(Generic[P, R]):
    """A function in tiers; `switches` reports on each signature."""

    def __init__(self, f: Callable[P, R], jit_options: dict[str, object]) -> None:
        import jax

        functools.update_wrapper(self, f)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._states: dict[int, SignatureCalls] = {}
        self._unsettled: list[SignatureCalls] = []  # not compiled yet, or failed
        #: Whether calls may go to JAX directly. It would compile signatures that are not settled.
        self._is_settled = False
        self._is_slower = False  # whether NumPy was slower than the compiler for some signature
        self._static_positions, self._static_names = _static_arguments(f, jit_options)

        @functools.wraps(f)
        def traced(*args: P.args, **kwargs: P.kwargs) -> R:
            # JAX calls this for new signatures only, so calls of known ones cost no more than
            # JAX's own dispatch.
            if not getattr(self._local, "may_trace", False):
                raise _NewSignatureError
            return f(*args, **kwargs)

        self._jitted = jax.jit(traced, **jit_options)

    @property
    def switches(self) -> tuple[Switch, ...]:
        with self._lock:
            return tuple(state.switch() for state in self._states.values())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._is_settled:
            try:
                compiled: R = self._jitted(*args, **kwargs)
                return compiled
            except _NewSignatureError:
                pass
        first: R = self._answer(args, kwargs)
        return first

    def wait(self) -> None:
        """Wait until all signatures so far are compiled."""
        for state in list(self._states.values()):
            if state.why_off is None:
                state.start(When.NOW)
                state.over.wait()

    def _answer(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        import jax

        given = [arg for i, arg in enumerate(args) if i not in self._static_positions]
        named = {name: value for name, value in kwargs.items() if name not in self._static_names}
        leaves = jax.tree_util.tree_leaves((given, named))
        with self._tracing():
            if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
                return self._jitted(*args, **kwargs)
            state = self._state(self._jitted.trace(*args, **kwargs), leaves)
            if state.why_off is None and state.is_slow:
                state.start(When.NOW)
                state.lowered.wait()
            if state.why_off is None and not state.over.is_set():
                try:
                    return state.by_numpy(leaves)
                except AbandonedError:
                    self._note_abandoned(state)
                except Exception:  # the interpreter's own: programs do not raise
                    state.why_off = WhyOff.NOT_UNDERSTOOD
                    self._warn(WhyOff.NOT_UNDERSTOOD)
                    state.start(When.NOW)
                    state.over.wait()
            if state.error is not None:
                raise state.error
            # JAX finds what the thread has compiled, or compiles now.
            return self._jitted(*args, **kwargs)

    def _state(self, traced: Any, leaves: list[object]) -> SignatureCalls:
        with self._lock:
            for before in self._unsettled:  # this is no longer the first call
                before.start(When.SOON)
            # JAX has one program per signature; the state keeps it alive, and its id valid.
            known = self._states.get(id(traced.jaxpr))
            if known is not None:
                return known
            why_off = _why_off(traced, leaves)
            if why_off is None and (self._is_slower or remembered.is_slower(traced.jaxpr)):
                why_off = WhyOff.SLOWER_IN_NUMPY
            known = self._states[id(traced.jaxpr)] = SignatureCalls(traced, why_off, self._settle)
            if why_off is None:
                self._is_settled = False
                self._unsettled.append(known)
                known.start(When.IF_SLOW)
                return known
        self._let_jax_answer()
        self._warn(why_off)
        return known

    def _note_abandoned(self, state: SignatureCalls) -> None:
        """If NumPy did not even answer the first call, compile the next signatures at once."""
        if state.switch().first_tier is Tier.COMPILED and state.error is None:
            self._is_slower = True
            remembered.remember(state.program)

    def _warn(self, why_off: WhyOff) -> None:
        name = getattr(self, "__name__", "f")
        text = f"firstlight: tiered({name}) compiles at once: {why_off.value}."
        warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _settle(self, state: SignatureCalls) -> None:
        with self._lock:
            self._unsettled.remove(state)
        self._let_jax_answer()

    def _let_jax_answer(self) -> None:
        # JAX's dispatch remembers that tracing raised, and would be ten times slower ever after.
        getattr(self._jitted, "_clear_cache", lambda: None)()
        with self._lock:
            self._is_settled = not self._unsettled

    @contextmanager
    def _tracing(self) -> Iterator[None]:
        before = getattr(self._local, "may_trace", False)
        self._local.may_trace = True
        try:
            yield
        finally:
            self._local.may_trace = before


def _why_off(traced: Any, leaves: list[object]) -> WhyOff | None:
    if traced.jaxpr.effects:
        return WhyOff.EFFECTS
    devices = [leaf.sharding.device_set for leaf in leaves if hasattr(leaf, "sharding")]
    return WhyOff.SEVERAL_DEVICES if any(len(found) > 1 for found in devices) else None
