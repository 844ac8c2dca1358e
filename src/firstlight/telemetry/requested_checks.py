"""Checks that a program requests: gradients against differences, outputs against earlier ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from hashlib import blake2b
from time import monotonic
from typing import ParamSpec, TypeVar, TypeVarTuple

from firstlight.telemetry import metrics
from firstlight.telemetry.differences import Comparison, GradientCheck, Verdict, say_over_budget
from firstlight.telemetry.starting import current
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.guard import guarded
from firstlight.telemetry.watch.steps import Steps

_X = TypeVar("_X")
_Rest = TypeVarTuple("_Rest")
_Gradient = TypeVar("_Gradient")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def check_gradient(
    function: Callable[[_X, *_Rest], object],
    x: _X,
    *rest: *_Rest,
    gradient: Callable[[_X, *_Rest], object] | None = None,
    budget_seconds: float = 5.0,
    seed: int = 0,
) -> GradientCheck:
    """Compare a gradient with finite differences, count the result, and return it. Never raises.

    Args:
        function: Scalar function of `x`, a tree of arrays, and of `rest`.
        gradient: The program's own gradient function, called with the same arguments. It returns
            the gradient, or a tuple that ends with it (`jax.value_and_grad`). By default
            `jax.grad(function)`.
        budget_seconds: No evaluation is started that would exceed it, judging by the previous one.
        seed: Seed of the random direction.
    """

    def of_program() -> object:
        import jax  # here, where a failure is part of the check

        return (gradient or jax.grad(function))(x, *rest)

    check = Comparison(function, x, rest, budget_seconds, seed, _steps())
    check.evaluate()
    check.compare(of_program)
    return _counted(check.result, function, budget_seconds)


def watch_gradient(
    function: Callable[[_X, *_Rest], object],
    gradient: Callable[[_X, *_Rest], _Gradient],
    *,
    every_seconds: float = 600.0,
    budget_seconds: float = 5.0,
) -> Callable[[_X, *_Rest], _Gradient]:
    """`gradient`, with its first call checked, and then one call every `every_seconds`.

    A check evaluates the function seven times before the call, so the call may donate its
    arguments. After a check that exceeded its budget there are no more.
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


def watch_outputs(
    function: Callable[_P, _R], *, name: str | None = None, remember: int = 64
) -> Callable[_P, _R]:
    """`function`, whose outputs must equal, to the last bit, those of earlier equal inputs.

    Inputs and outputs of every call are hashed, so each call waits for its results: use it for a
    canary (a fixed batch with a fixed seed, now and then), not for every step. The last `remember`
    inputs are remembered.
    """
    label = str(name or getattr(function, "__name__", "function"))[:100]
    seen: OrderedDict[bytes, bytes] = OrderedDict()

    def compare(inputs: bytes, outputs: bytes) -> None:
        watch = current()
        before = seen.pop(inputs, None)
        seen[inputs] = outputs
        if len(seen) > remember:
            seen.popitem(last=False)
        if watch is None or before is None:
            return
        result = "same" if before == outputs else "different"
        watch.values.counter(
            metrics.COMPARED_OUTPUTS, watch.steps.functions.label(label), result
        ).add()
        if result == "different":
            say_once(f"drift {label}", f"{label} gave different results for the same inputs.")

    @wraps(function)
    def watched(*arguments: _P.args, **named: _P.kwargs) -> _R:
        if current() is None:
            return function(*arguments, **named)
        inputs = _digest((arguments, named))  # before the call, which may donate them
        result = function(*arguments, **named)
        guarded(lambda: compare(inputs, _digest(result)))()
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


def _digest(tree: object) -> bytes:
    """A hash of the values, dtypes and structure of a tree of arrays."""
    import jax
    import numpy as np

    leaves, structure = jax.tree_util.tree_flatten(tree)
    digest = blake2b(str(structure).encode(), digest_size=16)
    for leaf in leaves:
        is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(
            leaf.dtype, jax.dtypes.prng_key
        )
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(leaf).encode() if array.dtype.hasobject else array.tobytes())
    return digest.digest()
