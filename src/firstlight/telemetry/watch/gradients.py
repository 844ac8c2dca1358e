"""Observes gradients that a program takes with `jax.grad` and `jax.value_and_grad`.

Most are taken while JAX traces a program: their variables in it are recorded. A gradient taken
outside of a program is traced into one for its check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from time import monotonic
from types import MethodType
from typing import Any

from firstlight.telemetry.watch.differentiated import TracedGradient
from firstlight.telemetry.watch.equations import leading_to
from firstlight.telemetry.watch.gradient_checks import Allowance, Note, ProgramChecks
from firstlight.telemetry.watch.guard import guarded
from firstlight.telemetry.watch.steps import Steps
from firstlight.telemetry.watch.tracers import (
    equations_since,
    is_being_traced,
    is_real,
    passes_on,
    place_of,
    program_finder,
    tracers_in,
)
from firstlight.trace.record.program_errors import leave_out_caller
from firstlight.trace.record.replacements import Replacements, itself, named_like

#: The attribute of a function that holds the checks of its gradients.
_CHECKS = "_firstlight_gradients"
#: Recorded gradients in programs; the oldest are dropped.
_MAX_TAKEN = 256


class Gradients:
    """The gradients of a process."""

    def __init__(self, steps: Steps, note: Note, budget_seconds: float) -> None:
        import jax

        self.steps, self._note, self.jit = steps, note, jax.jit
        self.allowance = Allowance(budget_seconds)
        self.taken: deque[TracedGradient] = deque(maxlen=_MAX_TAKEN)
        self.program_being_made = program_finder()

    def watch(self, replaced: Replacements) -> None:
        """Replace JAX's functions, unless the budget for checks is zero."""
        import jax

        if self.allowance.budget_seconds <= 0:
            return
        both = jax.value_and_grad
        for name, has_value in (("grad", False), ("value_and_grad", True)):
            replaced.put(jax, name, self._taking(getattr(jax, name), both, has_value))
        rule = jax.custom_vjp
        replaced.put(rule, "__call__", self._applying(rule.__call__))

    def checks_of(self, function: Any) -> ProgramChecks:
        """Checks of a function jitted by JAX."""
        return ProgramChecks(function, self.taken, self.allowance, self.steps, self._note, self.jit)

    def add(self, taken: TracedGradient) -> None:
        self.taken.append(taken)
        self.steps.here().took_gradient = True

    def _taking(self, original: Any, both: Any, has_value: bool) -> Any:
        def grad(
            fun: Any,
            argnums: Any = 0,
            has_aux: bool = False,
            holomorphic: bool = False,
            *more: Any,
            **options: Any,
        ) -> Any:
            given = (fun, argnums, has_aux, holomorphic, *more)
            made = original(*given, **options)
            if holomorphic:  # of complex numbers
                return made
            places = argnums if isinstance(argnums, int) else tuple(argnums)
            asked = GradientRequest(fun, places, has_aux, has_value)
            return GradientFunction(made, both(*given, **options), asked, self)

        return named_like(grad, original)

    def _applying(self, original: Any) -> Any:
        """The replacement of `custom_vjp.__call__`."""

        def call(rule: Any, /, *arguments: Any, **named: Any) -> Any:
            try:
                result = original(rule, *arguments, **named)
            except BaseException as error:
                leave_out_caller(error)
                raise
            if self.program_being_made() is not None:
                guarded(self._note_rule)(arguments, named, result)
            return result

        return named_like(call, original)

    def _note_rule(self, arguments: Any, named: Any, result: Any) -> None:
        here = self.steps.here()
        here.passes_on = here.passes_on or passes_on((arguments, named), result)


@dataclass(frozen=True)
class GradientRequest:
    """A function and the arguments of `jax.grad` or `jax.value_and_grad`."""

    function: Callable[..., Any]
    argnums: int | tuple[int, ...]
    has_aux: bool
    has_value: bool  # of value_and_grad

    def of(self, value_and_gradient: Any) -> Any:
        """The result for the program."""
        value, gradient = value_and_gradient
        if self.has_value:
            return value_and_gradient
        return (gradient, value[1]) if self.has_aux else gradient

    def variables(self, arguments: tuple[Any, ...]) -> Any:
        """The arguments with respect to which the gradient is taken."""
        if isinstance(self.argnums, int):
            return arguments[self.argnums]
        return tuple(arguments[n] for n in self.argnums)

    def others(self, arguments: tuple[Any, ...]) -> list[Any]:
        argnums = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        places = {n % len(arguments) for n in argnums}
        return [argument for n, argument in enumerate(arguments) if n not in places]


class GradientFunction:
    """Wraps a function made by `jax.grad`. Pickling it pickles that function."""

    def __init__(self, made: Any, both: Any, asked: GradientRequest, gradients: Gradients) -> None:
        update_wrapper(self, made)
        self._made, self._both, self._asked, self._gradients = made, both, asked, gradients
        self._longest_seconds = 0.0

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        program = self._gradients.program_being_made()
        try:
            if program is not None:
                return self._within(program, arguments, named)
            begin = monotonic()
            result = self._made(*arguments, **named)
        except BaseException as error:
            leave_out_caller(error)
            raise
        self._longest_seconds = max(self._longest_seconds, monotonic() - begin)
        if not self._gradients.steps.here().calling:
            guarded(self._check_if_due)(begin, arguments, named)
        return result

    def _within(self, program: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The gradient within a program that is being traced."""
        here, begin = self._gradients.steps.here(), len(program.frame.tracing_eqns)
        before, here.passes_on = here.passes_on, False
        try:
            result = self._both(*arguments, **named)
        except BaseException as error:
            leave_out_caller(error)
            raise
        finally:
            passed_on, here.passes_on = here.passes_on, here.passes_on or before
        guarded(self._note)(program, begin, arguments, named, result, passed_on)
        return self._asked.of(result)

    def _note(
        self,
        program: Any,
        begin: int,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        result: tuple[Any, Any],
        passed_on: bool,
    ) -> None:
        import jax

        leaves = jax.tree_util.tree_leaves
        value = place_of(result[0][0] if self._asked.has_aux else result[0], program)
        if value is None:
            return
        variables = leaves(self._asked.variables(arguments))
        others = tracers_in((self._asked.function, self._asked.others(arguments), named))
        taken = TracedGradient(
            str(getattr(self._asked.function, "__name__", "function")),
            tuple(
                place_of(one, program) if is_real(one) and id(one) not in others else None
                for one in variables
            ),
            tuple(place_of(one, program) for one in leaves(result[1])),
            value,
            tuple(leading_to([value.variable], equations_since(begin, program))),
            passed_on,
        )
        self._gradients.add(taken)

    def _check_if_due(
        self, begin: float, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        checks = self._checks()
        if begin >= checks.next_check and not is_being_traced((arguments, named)):
            checks.check(_split(arguments, named), {}, self._longest_seconds)

    def _checks(self) -> ProgramChecks:
        """The checks, stored on the function: a program may write `jax.grad(f)(x)` in a loop."""
        asked = self._asked
        try:
            known = asked.function.__dict__.setdefault(_CHECKS, _Checks())
        except (AttributeError, TypeError):  # a function without attributes
            known = self.__dict__.setdefault(_CHECKS, _Checks())
        key = (asked.argnums, asked.has_aux, asked.has_value)
        if key not in known:
            gradients = self._gradients
            known[key] = gradients.checks_of(gradients.jit(self._once_more, static_argnums=1))
        found: ProgramChecks = known[key]
        return found

    def _once_more(self, arrays: list[Any], fixed: _Fixed) -> Any:
        arguments, named = fixed.with_arrays(arrays)
        return self(*arguments, **named)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> Any:
        return itself, (self._made,)


class _Checks(dict[Any, ProgramChecks]):
    """Checks by argnums, has_aux and has_value. Pickled as an empty dict."""

    def __reduce__(self) -> Any:
        return dict, ()


class _Fixed:
    """The arguments of a call without its arrays, hashable as a static argument."""

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
