"""Gradients that a program takes with `jax.grad` and `jax.value_and_grad`, checked now and then.

The program is not changed: what its own call has returned is compared with differences of the
function, which is compiled for that. Checks take a bounded share of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from time import monotonic
from types import MethodType
from typing import Any

from firstlight.telemetry.differences import Comparison, GradientCheck, Verdict, say_over_budget
from firstlight.telemetry.watch.guard import guarded
from firstlight.telemetry.watch.steps import Steps
from firstlight.trace.record.program_errors import leave_out_caller
from firstlight.trace.record.replacements import named_like

#: Of the time since a gradient was called first.
_MAX_SHARE = 1 / 100
_EVERY_SECONDS = 600.0
#: What a check takes at least, as long as that is not known.
_MIN_SECONDS = 0.05
#: More is not fetched from a device, and moved, for the sake of a check.
_MAX_BYTES = 64 * 2**20
#: An attribute of a function whose gradients are watched.
_SCHEDULES = "_firstlight_gradients"


@dataclass(frozen=True)
class Taken:
    """A gradient as the program has asked for it."""

    function: Callable[..., Any]
    argnums: int | tuple[int, ...]
    has_aux: bool
    has_value: bool  # of value_and_grad

    def of(self, result: Any) -> Any:
        """The gradient in what a call has returned."""
        return result[1] if self.has_value else result[0] if self.has_aux else result

    def variables(self, arguments: tuple[Any, ...]) -> Any:
        """What is differentiated with respect to."""
        if isinstance(self.argnums, int):
            return arguments[self.argnums]
        return tuple(arguments[n] for n in self.argnums)

    def moved(self, arguments: tuple[Any, ...], x: Any) -> tuple[Any, ...]:
        """The arguments with other variables."""
        places, values = (
            ((self.argnums,), (x,)) if isinstance(self.argnums, int) else (self.argnums, x)
        )
        new = dict(zip((n % len(arguments) for n in places), values, strict=True))
        return tuple(new.get(n, argument) for n, argument in enumerate(arguments))


@dataclass
class Schedule:
    """When the gradients of a function are checked. It stays with the function, since a program may
    write `jax.grad(f)(x)` in its loop."""

    since: float | None = None  # of the first call
    next_check: float = 0.0
    longest_seconds: float = 0.0  # of a call that is not jitted
    seed: int = 0
    value: Any = None  # the function, compiled

    @classmethod
    def of(cls, taken: Taken) -> Schedule:
        key = (taken.argnums, taken.has_aux, taken.has_value)
        try:
            known = taken.function.__dict__.setdefault(_SCHEDULES, _Schedules())
            made: Schedule = known.setdefault(key, cls())
            return made
        except (AttributeError, TypeError):  # a function without room for it
            return cls()


class WatchedGradient:
    """One gradient of a program."""

    def __init__(self, taken: Taken, gradients: Gradients) -> None:
        self._taken, self._gradients = taken, gradients
        self.schedule = Schedule.of(taken)

    def called(
        self, arguments: tuple[Any, ...], named: dict[str, Any], result: Any, cost_seconds: float
    ) -> bool:
        """It has returned this; whether a check was made. It never raises.

        Args:
            cost_seconds: What a compile of it has taken: a check compiles no more than that.
        """
        now, schedule = monotonic(), self.schedule
        if schedule.since is None:
            schedule.since = now
        due = schedule.since + max(cost_seconds, _MIN_SECONDS) / _MAX_SHARE
        if now < due:
            schedule.next_check = due
            return False
        if _is_being_traced((arguments, named)):
            return False
        schedule.next_check = float("inf")  # unless this one goes well
        with self._gradients.steps.ours():
            guarded(lambda: self._check(arguments, named, result, cost_seconds))()
        schedule.next_check = max(schedule.next_check, now + (monotonic() - now) / _MAX_SHARE)
        return True

    def _check(
        self, arguments: tuple[Any, ...], named: dict[str, Any], result: Any, cost: float
    ) -> None:
        import jax

        budget = self._gradients.budget_seconds
        variables = self._taken.variables(arguments)
        size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree_util.tree_leaves(variables))
        if cost > budget or size > _MAX_BYTES:
            found = GradientCheck(Verdict.OVER_BUDGET)
        elif not self._may_be_evaluated(arguments, named):
            return
        else:
            found = self._compared(arguments, named, result)
        self._gradients.note(found)
        if found.verdict is Verdict.OVER_BUDGET:
            say_over_budget(self._taken.function, budget)
        else:
            self.schedule.next_check = monotonic() + _EVERY_SECONDS

    def _compared(
        self, arguments: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> GradientCheck:
        """Along one direction; a gradient is wrong if it is so along another one as well.

        Nobody has asked for this check, so it must not raise a false alarm.
        """
        variables, gradient = self._taken.variables(arguments), self._taken.of(result)

        def value(x: Any) -> Any:
            return self.schedule.value(*_split(self._taken.moved(arguments, x), named))

        found = GradientCheck(Verdict.UNCERTAIN)
        for attempt in range(2):
            budget = self._gradients.budget_seconds
            seed, steps = self.schedule.seed, self._gradients.steps
            check = Comparison(value, variables, (), budget, seed, steps)
            self.schedule.seed += 1
            check.evaluate()
            check.compare(lambda: gradient)
            if check.result.verdict is not Verdict.WRONG:
                return GradientCheck(Verdict.UNCERTAIN) if attempt else check.result
            found = check.result
        return found

    def _may_be_evaluated(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Not on one process of several, where others would have to take part; nor if it says
        something to the outside; nor if its gradient is another one on purpose."""
        import jax

        leaves = jax.tree_util.tree_leaves((arguments, named))
        if jax.process_count() > 1 or any(map(_is_gone, leaves)):
            return False
        if self.schedule.value is None:
            self.schedule.value = self._gradients.jit(self._scalar, static_argnums=1)
        traced = self.schedule.value.trace(*_split(arguments, named)).jaxpr
        return not traced.effects and not _stops_gradients(traced.jaxpr)

    def _scalar(self, arrays: list[Any], fixed: _Fixed) -> Any:
        arguments, named = fixed.with_arrays(arrays)
        result = self._taken.function(*arguments, **named)
        return result[0] if self._taken.has_aux else result


class Gradients:
    """Makes watched gradients of what `jax.grad` and `jax.value_and_grad` make."""

    def __init__(
        self, steps: Steps, note: Callable[[GradientCheck], None], budget_seconds: float, jit: Any
    ) -> None:
        self.steps, self.note, self.budget_seconds, self.jit = steps, note, budget_seconds, jit

    def taking(self, original: Any, has_value: bool, is_tracing: Callable[[], bool]) -> Any:
        """`jax.grad` or `jax.value_and_grad`, whose gradients are watched."""

        def grad(
            fun: Any, argnums: Any = 0, has_aux: bool = False, *more: Any, **options: Any
        ) -> Any:
            made = original(fun, argnums, has_aux, *more, **options)
            if more or options:  # of complex numbers, or of integers
                return made
            places = argnums if isinstance(argnums, int) else tuple(argnums)
            watched = WatchedGradient(Taken(fun, places, has_aux, has_value), self)
            return GradientFunction(made, watched, self.steps, is_tracing)

        return named_like(grad, original)


class GradientFunction:
    """What `jax.grad` has made, whose calls are seen. To pickle it is to pickle what was made."""

    def __init__(
        self, made: Any, watched: WatchedGradient, steps: Steps, is_tracing: Callable[[], bool]
    ) -> None:
        update_wrapper(self, made)
        self._made, self.watched = made, watched
        self._steps, self._is_tracing = steps, is_tracing

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        if self._is_tracing() or self._steps.here().calling:
            return self._made(*arguments, **named)
        begin = monotonic()
        try:
            result = self._made(*arguments, **named)
        except BaseException as error:
            leave_out_caller(error)
            raise
        schedule = self.watched.schedule
        schedule.longest_seconds = max(schedule.longest_seconds, monotonic() - begin)
        if begin >= schedule.next_check:
            self.watched.called(arguments, named, result, schedule.longest_seconds)
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> Any:
        return _itself, (self._made,)


def gradient_of(function: Any) -> WatchedGradient | None:
    """The watched gradient that a function is, if it is one."""
    return function.watched if isinstance(function, GradientFunction) else None


def _itself(function: Any) -> Any:
    return function


class _Schedules(dict[Any, "Schedule"]):
    """By what is asked of the gradient. They are of this process, and no part of the function."""

    def __reduce__(self) -> Any:
        return dict, ()


class _Fixed:
    """What of a call's arguments is no array, and where the arrays go."""

    def __init__(self, tree: Any, leaves: list[Any]) -> None:
        self._tree, self._leaves = tree, leaves

    def with_arrays(self, arrays: list[Any]) -> Any:
        left = iter(arrays)
        return self._tree.unflatten(next(left) if x is _ARRAY else x for x in self._leaves)

    def __hash__(self) -> int:
        return hash(self._tree)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Fixed) or self._tree != other._tree:
            return False
        return all(
            a is b or (type(a) is type(b) and bool(a == b))
            for a, b in zip(self._leaves, other._leaves, strict=True)
        )


_ARRAY = object()


def _split(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], _Fixed]:
    import jax
    import numpy as np

    kinds = (jax.Array, np.ndarray, np.generic, float)
    leaves, tree = jax.tree_util.tree_flatten((arguments, named))
    arrays = [leaf for leaf in leaves if isinstance(leaf, kinds)]
    fixed = [_ARRAY if isinstance(leaf, kinds) else leaf for leaf in leaves]
    return arrays, _Fixed(tree, fixed)


def _is_being_traced(tree: Any) -> bool:
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree))


def _is_gone(leaf: Any) -> bool:
    """Donated to the call, or partly on another machine."""
    is_deleted = getattr(leaf, "is_deleted", None)
    return (is_deleted is not None and is_deleted()) or not getattr(
        leaf, "is_fully_addressable", True
    )


def _stops_gradients(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "stop_gradient":
            return True
        for parameter in equation.params.values():
            inner = parameter if isinstance(parameter, (tuple, list)) else (parameter,)
            for one in inner:
                program = getattr(one, "jaxpr", one)  # with constants, or without
                if hasattr(program, "eqns") and _stops_gradients(program):
                    return True
    return False
