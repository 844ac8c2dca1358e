"""A gradient against differences of its function, along one random direction, in bounded time.

With v a random direction, the derivative of f along v is ⟨∇f, v⟩ and the limit of
(f(x + hv) − f(x − hv)) / 2h. Two steps, h and 2h, tell how far the differences themselves can be
trusted, and Richardson's combination of both is what the gradient is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from time import monotonic
from typing import Any

from firstlight.telemetry.starting import current
from firstlight.telemetry.warning_line import say_once
from firstlight.trace.record.program_errors import pass_on

#: The gradient may differ by this much, by the bytes of a number: differences are no better.
_TOLERANCES = {8: 1e-5, 4: 2e-2}
_HALF_PRECISION_TOLERANCE = 0.2
#: Of the derivative: differences that are less certain than this say nothing.
_MAX_UNCERTAINTY = 0.1


class Verdict(Enum):
    OK = "ok"
    WRONG = "wrong"
    UNCERTAIN = "uncertain"  # the differences do not agree with each other
    OVER_BUDGET = "over_budget"


@dataclass(frozen=True)
class GradientCheck:
    verdict: Verdict
    relative_error: float | None = None  # of the derivative along the direction


def check_gradient(
    function: Callable[..., Any],
    x: Any,
    *rest: Any,
    gradient: Callable[..., Any] | None = None,
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
    check = _Check(function, x, rest, budget_seconds, seed)
    check.evaluate()
    if check.derivative is not None:
        check.compare(lambda: (gradient or _jax_gradient(function))(x, *rest))
    return check.finish()


def watch_gradient(
    function: Callable[..., Any],
    gradient: Callable[..., Any],
    *,
    every_seconds: float = 600.0,
    budget_seconds: float = 5.0,
) -> Callable[..., Any]:
    """`gradient`, of which a call now and then is checked: the first one, then every so often.

    The function is evaluated four times before the call, so arguments may be donated to it. After
    a check that exceeded its budget there are no more.
    """
    next_check, seed = monotonic(), 0

    @wraps(gradient)
    def watched(x: Any, *rest: Any) -> Any:
        nonlocal next_check, seed
        if current() is None or monotonic() < next_check:
            return gradient(x, *rest)
        check = _Check(function, x, rest, budget_seconds, seed)
        check.evaluate()
        result = gradient(x, *rest)
        check.compare(lambda: result)
        over = check.finish().verdict is Verdict.OVER_BUDGET
        next_check, seed = monotonic() + (float("inf") if over else every_seconds), seed + 1
        return result

    return watched


class _Check:
    """One check. Errors of the program's own function leave it uncertain."""

    def __init__(
        self, function: Callable[..., Any], x: Any, rest: Any, budget: float, seed: int
    ) -> None:
        self._function, self._x, self._rest = function, x, rest
        self._end = monotonic() + budget
        self._budget, self._seed = budget, seed
        self._last = 0.0  # seconds of the last evaluation
        self._direction: list[Any] = []
        self._tolerance = self._uncertainty = 0.0
        self.derivative: float | None = None
        self._result = GradientCheck(Verdict.UNCERTAIN)

    def evaluate(self) -> None:
        """The derivative, by differences."""
        self._safely(self._differences)

    def compare(self, gradient: Callable[[], Any]) -> None:
        """With the gradient, if the differences were had."""
        if self.derivative is not None:
            self._safely(lambda: self._compare(gradient))

    def finish(self) -> GradientCheck:
        """The result, counted."""
        result = self._result
        if result.verdict is Verdict.OVER_BUDGET:
            name = getattr(self._function, "__name__", "function")
            say_once(
                f"gradient {name}",
                f"the gradient of {name} was not checked: that takes longer than "
                f"{self._budget:g} s. Give a larger budget_seconds, or a smaller example.",
            )
        watch = current()
        if watch is not None:
            watch.note_gradient(result.verdict.value, result.relative_error)
        return result

    def _safely(self, action: Callable[[], None]) -> None:
        watch = current()
        here = None if watch is None else watch.steps.here()
        calling = here is not None and here.calling
        if here is not None:
            here.calling = True  # these calls are ours
        try:
            action()
        except _OverBudget:
            self._result = GradientCheck(Verdict.OVER_BUDGET)
        except Exception as error:
            pass_on(error)
            say_once(
                "gradient check", f"a gradient was not checked: {type(error).__name__}: {error}"
            )
        finally:
            if here is not None:
                here.calling = calling

    def _differences(self) -> None:
        import jax
        import numpy as np

        leaves, tree = jax.tree_util.tree_flatten(self._x)
        arrays = [np.asarray(leaf) for leaf in leaves]
        random = np.random.default_rng(self._seed)
        kinds = [a.dtype for a in arrays if _is_real(a)]
        epsilon = max(float(jax.numpy.finfo(kind).eps) for kind in kinds)
        size = min(kind.itemsize for kind in kinds)
        self._tolerance = _TOLERANCES.get(size, _HALF_PRECISION_TOLERANCE)
        self._direction = [_direction(a, random) for a in arrays]
        step = epsilon ** (1 / 3)

        def value(times: float) -> float:
            moved = [
                jax.device_put(
                    (a + times * step * v).astype(a.dtype), getattr(leaf, "sharding", None)
                )
                if _is_real(a)
                else leaf
                for a, v, leaf in zip(arrays, self._direction, leaves, strict=True)
            ]
            return self._timed(lambda: self._function(tree.unflatten(moved), *self._rest))

        near = [value(+1), value(-1)]
        far = [value(+2), value(-2)]
        first, second = (near[0] - near[1]) / (2 * step), (far[0] - far[1]) / (4 * step)
        rounding = epsilon * max(map(abs, near + far)) / step
        self._uncertainty = abs(first - second) + 2 * rounding
        self.derivative = (4 * first - second) / 3

    def _compare(self, gradient: Callable[[], Any]) -> None:
        import jax
        import numpy as np

        given = gradient()
        structure = jax.tree_util.tree_structure(self._x)
        if jax.tree_util.tree_structure(given) != structure and isinstance(given, tuple):
            given = given[-1]  # of value_and_grad
        slopes = jax.tree_util.tree_leaves(given)
        along = sum(
            float(np.vdot(np.asarray(slope, float), v))
            for slope, v in zip(slopes, self._direction, strict=True)
            if v is not None
        )
        assert self.derivative is not None
        size = max(abs(along), abs(self.derivative))
        error = abs(along - self.derivative)
        relative = error / size if size else 0.0
        if error == 0 or error <= self._tolerance * size:
            verdict = Verdict.OK
        elif np.isfinite(along) and self._uncertainty > _MAX_UNCERTAINTY * size:
            verdict = Verdict.UNCERTAIN
        elif error <= self._uncertainty:
            verdict = Verdict.OK
        else:  # or not a number
            verdict = Verdict.WRONG
        self._result = GradientCheck(verdict, relative)

    def _timed(self, evaluate: Callable[[], Any]) -> float:
        if monotonic() + self._last > self._end:
            raise _OverBudget
        begin = monotonic()
        value = float(evaluate())
        self._last = monotonic() - begin
        return value


class _OverBudget(Exception):  # noqa: N818 (no error)
    pass


def _is_real(array: Any) -> bool:
    return bool(array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float")))


def _direction(array: Any, random: Any) -> Any:
    """Signs drawn at random, each as large as the number it moves."""
    import numpy as np

    if not _is_real(array):
        return None
    signs = random.choice([-1.0, 1.0], size=array.shape)
    return signs * np.maximum(np.abs(array.astype(float)), 1.0)


def _jax_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    import jax

    made: Callable[..., Any] = jax.grad(function)
    return made
