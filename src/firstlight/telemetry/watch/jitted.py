"""Sees the calls of jitted functions, and the waits for results, in a program that knows nothing of
it: `jax.jit` is replaced after `import jax`, and so is what waits.

JAX runs a compiled function without a line of Python, so each function that the program jits is
put into an object that has its attributes and is called in its place. Functions that JAX jits for
itself (`jnp.add`) stay as they are.
"""

from __future__ import annotations

from time import monotonic
from types import MethodType
from typing import Any

from firstlight.telemetry.watch.functions import Function
from firstlight.telemetry.watch.guard import guarded
from firstlight.telemetry.watch.steps import Steps, arrays_in
from firstlight.trace.record.program_errors import leave_out_caller
from firstlight.trace.record.replacements import Replacements, named_like


class JittedFunction:
    """A jitted function whose calls are counted."""

    __slots__ = ("__dict__", "__weakref__", "_function", "_of", "_watch")

    def __init__(self, function: Any, watch: JaxWatch) -> None:
        self._function, self._watch = function, watch
        self._of: Function | None = None
        # Found in the class otherwise.
        for name in ("__doc__", "__module__"):
            setattr(self, name, getattr(function, name, None))

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        watch = self._watch
        here = watch.steps.here
        if here.calling or watch.is_tracing():
            return self._function(*arguments, **named)
        of = self._of
        if of is None:  # named now: many are made and never called
            of = self._of = watch.steps.functions.of_steps(_name(self._function))
        begin = monotonic()
        if here.of is None and not here.steps:
            here.compiled = False
        here.calling, here.result = True, None
        try:
            result = self._function(*arguments, **named)
        except BaseException as error:
            watch.failed(of, error)
            leave_out_caller(error)
            raise
        finally:
            here.calling = False
        watch.called(of, begin, result)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __repr__(self) -> str:
        return repr(self._function)

    def __reduce__(self) -> Any:
        return _itself, (self._function,)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance sees the function
        return type(self._function)

    @property
    def __wrapped__(self) -> Any:
        return self._function.__wrapped__

    # Looked for in the class by `isinstance(function, jax.stages.Wrapped)`.
    def lower(self, *arguments: Any, **named: Any) -> Any:
        return self._function.lower(*arguments, **named)

    def trace(self, *arguments: Any, **named: Any) -> Any:
        return self._function.trace(*arguments, **named)


class JaxWatch:
    """JAX, watched until `unwatch()`; functions that were jitted meanwhile go on unwatched."""

    def __init__(self, steps: Steps) -> None:
        from jax._src import array

        self.steps = steps
        self.called, self.failed = guarded(self._called), guarded(self._failed)
        self._array: type = array.ArrayImpl
        self._replaced = Replacements()
        self._active = True
        self.is_tracing = _tracing_test()

    def watch(self) -> None:
        import jax

        for name in ("jit", "pmap"):
            self._replaced.put(jax, name, self._jitting(getattr(jax, name)))
        self._watch_waits()

    def unwatch(self) -> None:
        self._active = False
        self.is_tracing = lambda: True
        self._replaced.undo()

    def _called(self, of: Any, begin: float, result: Any) -> None:
        here = self.steps.here
        if not self._active:
            return
        arrays = arrays_in(result, self._array)
        self.steps.returned(of, arrays)
        if begin > of.follow_again:
            of.follow(arrays, begin)
        if not here.steps:
            of.ok.add()
            self.steps.begun(of, begin)

    def _failed(self, of: Any, error: BaseException) -> None:
        if not self.steps.here.steps:
            if isinstance(error, Exception):
                of.errors.add()
            self.steps.forget()

    def _jitting(self, original: Any) -> Any:
        def jit(*arguments: Any, **named: Any) -> Any:
            made = original(*arguments, **named)
            if not self._active:
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
        waited, here = guarded(self.steps.waited), self.steps.here

        def wait(of: Any) -> Any:
            try:
                result = original(of)
            except BaseException as error:
                leave_out_caller(error)
                raise
            if here.of is not None:
                waited()
            return result

        return named_like(wait, original)


def _tracing_test() -> Any:
    """Whether JAX is making a program of what is called now; never, where it cannot be asked."""
    from jax._src import core
    from jax._src.interpreters import partial_eval

    context = getattr(core, "trace_ctx", None)
    tracing = getattr(partial_eval, "DynamicJaxprTrace", None)
    if context is None or tracing is None or not hasattr(context, "trace"):
        return lambda: False
    return lambda: type(context.trace) is tracing


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)[:100]


def _itself(function: Any) -> Any:
    return function
