"""Checks of a gradient that a program asks for itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import TypeVar, TypeVarTuple

from firstlight.telemetry.differences import Comparison, GradientCheck, Verdict, say_over_budget
from firstlight.telemetry.starting import current
from firstlight.telemetry.watch.steps import Steps

_X = TypeVar("_X")
_Rest = TypeVarTuple("_Rest")
_Gradient = TypeVar("_Gradient")


def check_gradient(
    function: Callable[[_X, *_Rest], object],
    x: _X,
    *rest: *_Rest,
    gradient: Callable[[_X, *_Rest], object] | None = None,
    budget_seconds: float = 5.0,
    seed: int = 0,
) -> GradientCheck:
    """Compare a gradient with differences, count the result, and return it. It never raises.

    Args:
        function: Scalar function of `x`, a tree of arrays, and of `rest`.
        gradient: Of the function, as the program has it: called with the same arguments, its
            result is the gradient, or ends with it (`jax.value_and_grad`). By default `jax.grad`.
        budget_seconds: No evaluation is begun that would exceed it, as far as that can be told
            from the one before.
        seed: Of the direction.
    """
    check = Comparison(function, x, rest, budget_seconds, seed, _steps())
    check.evaluate()
    check.compare(lambda: (gradient or _jax_gradient(function))(x, *rest))
    return _counted(check.result, function, budget_seconds)


def watch_gradient(
    function: Callable[[_X, *_Rest], object],
    gradient: Callable[[_X, *_Rest], _Gradient],
    *,
    every_seconds: float = 600.0,
    budget_seconds: float = 5.0,
) -> Callable[[_X, *_Rest], _Gradient]:
    """`gradient`, of which a call now and then is checked: the first one, then every so often.

    The function is evaluated seven times before the call, so arguments may be donated to it. After
    a check that exceeded its budget there are no more.
    """
    next_check, seed = monotonic(), 0

    @wraps(gradient)
    def watched(x: _X, *rest: *_Rest) -> _Gradient:
        nonlocal next_check, seed
        if current() is None or monotonic() < next_check:
            return gradient(x, *rest)
        check = Comparison(function, x, rest, budget_seconds, seed, _steps())
        check.evaluate()
        result = gradient(x, *rest)
        check.compare(lambda: result)
        found = _counted(check.result, function, budget_seconds)
        over = found.verdict is Verdict.OVER_BUDGET
        next_check, seed = monotonic() + (float("inf") if over else every_seconds), seed + 1
        return result

    return watched


def _steps() -> Steps | None:
    watch = current()
    return None if watch is None else watch.steps


def _counted(
    result: GradientCheck, function: Callable[..., object], budget: float
) -> GradientCheck:
    if result.verdict is Verdict.OVER_BUDGET:
        say_over_budget(getattr(function, "__name__", "function"), budget)
    watch = current()
    if watch is not None:
        watch.note_gradient(result)
    return result


def _jax_gradient(function: Callable[..., object]) -> Callable[..., object]:
    import jax

    made: Callable[..., object] = jax.grad(function)
    return made
