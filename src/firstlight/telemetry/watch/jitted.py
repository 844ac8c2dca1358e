"""Observes calls of jitted functions and waits for their results in an unchanged program.

After `import jax`, `jax.jit` and the functions that wait are replaced. JAX runs compiled functions
without executing Python, so each function that the program jits is wrapped in an object with the
same attributes. Functions that JAX jits itself (`jnp.add`) are not wrapped.
"""

from __future__ import annotations

from _thread import get_ident
from time import monotonic
from types import MethodType
from typing import Any

from firstlight.telemetry.watch.functions import Function
from firstlight.telemetry.watch.gradient_checks import Note, ProgramChecks
from firstlight.telemetry.watch.gradients import Gradients
from firstlight.telemetry.watch.guard import say_failed
from firstlight.telemetry.watch.steps import MAX_ENDED, Steps, ThreadState, arrays_in
from firstlight.telemetry.watch.tracers import tracing_test
from firstlight.trace.record.program_errors import leave_out_caller
from firstlight.trace.record.replacements import Replacements, itself, named_like


class JittedFunction:
    """A jitted function whose calls are counted."""

    __slots__ = ("__dict__", "__weakref__", "_checks", "_function", "_of", "_threads", "_watch")

    def __init__(self, function: Any, watch: JaxWatch) -> None:
        self._function, self._watch, self._threads = function, watch, watch.steps.threads
        self._checks: ProgramChecks | None = None  # if it takes a gradient
        self._of: Function | None = None
        # `__getattr__` is not asked for these, which the class has.
        for name in ("__doc__", "__module__"):
            setattr(self, name, getattr(function, name, None))

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        here = self._threads.get(get_ident()) or self._watch.steps.here()
        if here.calling:
            return self._function(*arguments, **named)
        if here.of is None and not here.steps:
            here.compiled = False
        here.calling, here.result = True, None
        begin, checks, kept = monotonic(), self._checks, None
        if checks is not None and begin >= checks.next_check:
            kept = self._watch.kept(checks, arguments, named)
        try:
            result = self._function(*arguments, **named)
        except BaseException as error:
            here.calling = False
            self._watch.failed(here, self._of or self._named(), error)
            leave_out_caller(error)
            raise
        here.calling = False
        of = self._of
        # The common case is inlined: after a step, none of our code is in the processor's cache.
        if (
            of is not None
            and of.holds_result
            and type(result) is of.array_type
            and not (here.steps or here.compiled)
            and begin < of.follow_again
            and kept is None
        ):
            here.result = result
            of.ok.value += 1
            if here.of is None:
                here.of, here.begin, here.count = of, begin, 1
            elif here.of is of:
                here.count += 1
            return result
        try:
            of = of or self._named()
            self._watch.called(here, of, begin, result)
            if here.took_gradient:
                checks = self._checks = self._watch.with_gradient(here, checks, self._function)
                kept = kept or (arguments, named)
            if kept is not None and checks is not None:
                self._watch.check_gradients(checks, here, of, *kept)
        except Exception as error:
            say_failed(error)
        return result

    def _named(self) -> Function:
        """Look up the series at the first call, since many functions are never called."""
        name = str(getattr(self._function, "__name__", None) or type(self._function).__name__)
        self._of = self._watch.steps.functions.of_steps(name[:100])
        return self._of

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> Any:
        return itself, (self._function,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance sees the function
        return type(self._function)

    @property
    def __wrapped__(self) -> Any:
        return self._function.__wrapped__

    # `isinstance(function, jax.stages.Wrapped)` looks for these in the class.
    def lower(self, *arguments: Any, **named: Any) -> Any:
        return self._traced(self._function.lower(*arguments, **named))

    def trace(self, *arguments: Any, **named: Any) -> Any:
        return self._traced(self._function.trace(*arguments, **named))

    def _traced(self, stage: Any) -> Any:
        here = self._watch.steps.here()
        if here.took_gradient and not here.calling:
            self._checks = self._watch.with_gradient(here, self._checks, self._function)
        return stage


class JaxWatch:
    """Watches JAX until `unwatch()`; functions jitted meanwhile then run unwatched."""

    def __init__(self, steps: Steps, note: Note, gradient_seconds: float) -> None:
        from jax._src import array

        self.steps = steps
        self._gradients = Gradients(steps, note, gradient_seconds)
        self.active = True
        self._array: type = array.ArrayImpl
        self._replaced = Replacements()
        self._is_tracing = tracing_test()

    def watch(self) -> None:
        import jax

        for name in ("jit", "pmap"):
            self._replaced.put(jax, name, self._jitting(getattr(jax, name)))
        self._gradients.watch(self._replaced)
        self._watch_waits()

    def unwatch(self) -> None:
        self.active = False
        self._replaced.undo()

    def called(self, here: ThreadState, of: Function, begin: float, result: Any) -> None:
        if type(result) is self._array:
            array = result
        else:
            array = next(iter(arrays_in(result, self._array)), None)
        if not self.active or (array is None and self._is_tracing()):
            return  # part of a program that is being traced
        if array is not None:
            of.array_type = self._array
            self.steps.returned(here, of, array)
        if begin > of.follow_again:
            of.follow(arrays_in(result, self._array), begin)
        if not here.steps:
            of.ok.value += 1
            self.steps.begun(here, of, begin)

    def with_gradient(
        self, here: ThreadState, checks: ProgramChecks | None, function: Any
    ) -> ProgramChecks:
        """The checks of a function that has taken a gradient while being traced."""
        here.took_gradient = False
        checks = checks or self._gradients.checks_of(function)
        checks.renew()
        return checks

    def kept(self, checks: ProgramChecks, arguments: Any, named: Any) -> Any:
        """The arguments, before a call with checks due; None if they cannot be kept."""
        try:
            return checks.kept(arguments, named) if self.active else None
        except Exception as error:
            say_failed(error)
            return None

    def check_gradients(
        self,
        checks: ProgramChecks,
        here: ThreadState,
        of: Function,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        """Check the gradients of a function that has been called with these arguments."""
        if self._is_tracing():
            return
        begin, cost = monotonic(), self.steps.functions.of_compiles(of.name).cost_seconds
        if checks.check(arguments, named, cost):  # its time is not part of the step
            if here.steps:
                here.begin += monotonic() - begin
            else:
                self.steps.forget(here)

    def failed(self, here: ThreadState, of: Function, error: BaseException) -> None:
        if not here.steps and not self._is_tracing():
            if isinstance(error, Exception):
                of.failed(error)
            self.steps.forget(here)

    def _jitting(self, original: Any) -> Any:
        def jit(*arguments: Any, **named: Any) -> Any:
            made = original(*arguments, **named)
            if not self.active:
                return made
            if hasattr(made, "lower"):
                return JittedFunction(made, self)
            return lambda *more, **others: JittedFunction(made(*more, **others), self)

        return named_like(jit, original)

    def _watch_waits(self) -> None:
        from jax._src import api

        array, put = self._array, self._replaced.put
        value = array.__dict__.get("_value")
        if isinstance(value, property):
            put(array, "_value", property(self._waiting(value.fget)))
        client = getattr(api, "xc", None)
        for owner in (array, client):
            for name in ("block_until_ready", "batched_block_until_ready"):
                if hasattr(owner, name):
                    put(owner, name, self._waiting(getattr(owner, name)))

    def _waiting(self, original: Any) -> Any:
        threads, waited, ended = self.steps.threads, self.steps.waited, self.steps.ended

        def wait(of: Any) -> Any:
            try:
                result = original(of)
            except BaseException as error:
                here = threads.get(get_ident())
                if here is not None and here.of is not None and not here.calling:
                    self.failed(here, here.of, error)  # errors of a GPU surface in waits
                leave_out_caller(error)
                raise
            here = threads.get(get_ident())
            if here is None or here.of is None or here.steps or here.calling:
                return result
            if of is here.result and len(ended) < MAX_ENDED:  # inlined as well
                ended.append((here.of, here.begin, here.count, here.compiled, monotonic()))
                here.of = here.result = None
                return result
            try:
                waited(here, of)
            except Exception as error:
                say_failed(error)
            return result

        return named_like(wait, original)
