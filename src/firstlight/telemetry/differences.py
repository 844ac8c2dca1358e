"""A gradient against differences of its function, along one random direction, in bounded time.

With v a random direction, the derivative of f along v is ⟨∇f, v⟩ and the limit of
(f(x + hv) − f(x − hv)) / 2h. How far a difference can be trusted is told by that of another step,
by its two sides, which differ at a kink (of a ReLU, say), and by the rounding of f. Of three steps,
the one that can be trusted most is what the gradient is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any

from firstlight.telemetry.warning_line import say_once
from firstlight.trace.record.program_errors import pass_on

if TYPE_CHECKING:
    from firstlight.telemetry.watch.steps import Steps

#: The gradient may differ by this much with numbers of such precision: differences are no better.
_TOLERANCES = {1e-15: 1e-5, 1e-6: 2e-2}
_LOW_PRECISION_TOLERANCE = 0.2
#: Of the derivative: differences that are less certain than this say nothing.
_MAX_UNCERTAINTY = 0.1
#: A gradient is wrong from this many uncertainties on, which are estimates themselves.
_MIN_DEVIATION = 4.0
#: Steps, each so many times smaller than the one before.
_STEPS, _STEP_RATIO = 3, 4


class Verdict(Enum):
    OK = "ok"
    WRONG = "wrong"
    UNCERTAIN = "uncertain"  # the differences do not agree with each other
    OVER_BUDGET = "over_budget"
    NOT_COMPARABLE = "not_comparable"  # it differs, and may well be meant to


class NotChecked(Enum):
    """Why there was no comparison."""

    EFFECTS = "effects"  # callbacks, which would be called once more
    NOT_ADDRESSABLE = "not_addressable"  # other processes would have to take part
    OUT_OF_REACH = "out_of_reach"  # its inputs cannot be had by themselves
    ERROR = "error"


class NotCheckedError(Exception):
    def __init__(self, reason: NotChecked) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class GradientCheck:
    verdict: Verdict
    #: Of the derivative along the direction; None if the differences say nothing.
    relative_error: float | None = None


class Comparison:
    """One check. Errors of the program's own function leave it uncertain.

    Args:
        function: Scalar function of `x`, a tree of arrays, and of `rest`.
        budget_seconds: No evaluation is begun that would exceed it, as far as that can be told
            from the one before.
        seed: Of the direction.
        steps: Of the process, if it is watched: nothing that happens here is counted there.
        epsilon: Of the numbers that the function computes with, if coarser than those of `x`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        x: Any,
        rest: tuple[Any, ...],
        budget_seconds: float,
        seed: int,
        steps: Steps | None,
        epsilon: float = 0.0,
    ) -> None:
        self._function, self._x, self._rest = function, x, rest
        self._end = monotonic() + budget_seconds
        self._seed, self._steps = seed, steps
        self._epsilon = epsilon
        self._last = 0.0  # seconds of the last evaluation
        self._direction: list[Any] = []
        self._tolerance = self._uncertainty = 0.0
        self.derivative: float | None = None
        self.result = GradientCheck(Verdict.UNCERTAIN)

    def evaluate(self) -> None:
        """The derivative, by differences."""
        self._safely(self._differences)

    def compare(self, gradient: Callable[[], Any]) -> None:
        """With the gradient, if the differences were had."""
        if self.derivative is not None:
            self._safely(lambda: self._compare(gradient))

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            with nullcontext() if self._steps is None else self._steps.ours():
                action()
        except _OverBudget:
            self.result = GradientCheck(Verdict.OVER_BUDGET)
        except Exception as error:
            pass_on(error)
            say_once(
                "gradient check", f"a gradient was not checked: {type(error).__name__}: {error}"
            )

    def _differences(self) -> None:
        import jax
        import numpy as np

        leaves, tree = jax.tree_util.tree_flatten(self._x)
        arrays = [_as_jax_has_it(leaf) for leaf in leaves]
        random = np.random.default_rng(self._seed)
        kinds = [a.dtype for a in arrays if _is_real(a)]
        epsilon = max([self._epsilon, *(float(jax.numpy.finfo(kind).eps) for kind in kinds)])
        self._tolerance = next(
            (t for limit, t in _TOLERANCES.items() if epsilon < limit), _LOW_PRECISION_TOLERANCE
        )
        self._direction = [_direction(a, random) for a in arrays]

        def value(step: float) -> float:
            moved = [
                jax.device_put((a + step * v).astype(a.dtype), getattr(leaf, "sharding", None))
                if _is_real(a)
                else leaf
                for a, v, leaf in zip(arrays, self._direction, leaves, strict=True)
            ]
            return self._timed(lambda: self._function(tree.unflatten(moved), *self._rest))

        self._uncertainty, self.derivative = _most_certain(value, epsilon)

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
        relative: float | None = error / size if size else 0.0
        if not np.isfinite(self.derivative):
            verdict = Verdict.UNCERTAIN
        elif error == 0 or error <= self._tolerance * size:
            verdict = Verdict.OK
        elif np.isfinite(along) and self._uncertainty > _MAX_UNCERTAINTY * size:
            verdict = Verdict.UNCERTAIN
        elif error <= self._uncertainty:
            verdict = Verdict.OK
        elif error <= _MIN_DEVIATION * self._uncertainty:
            verdict = Verdict.UNCERTAIN
        else:  # or a gradient that is not a number
            verdict = Verdict.WRONG
        self.result = GradientCheck(verdict, None if verdict is Verdict.UNCERTAIN else relative)

    def _timed(self, evaluate: Callable[[], Any]) -> float:
        if monotonic() + self._last > self._end:
            raise _OverBudget
        begin = monotonic()
        value = float(evaluate())
        self._last = monotonic() - begin
        return value


def _most_certain(value: Callable[[float], float], epsilon: float) -> tuple[float, float]:
    """A derivative at zero, after its uncertainty."""
    center, before, found = value(0.0), None, []
    for level in range(_STEPS):
        step = epsilon ** (1 / 3) / _STEP_RATIO**level
        right, left = value(step), value(-step)
        slope = (right - left) / (2 * step)
        sides = abs(right - 2 * center + left) / step
        rounding = 2 * epsilon * max(abs(right), abs(left), abs(slope)) / step
        if before is not None:
            found.append((abs(slope - before) + sides / 2 + rounding, slope))
        before = slope
    return min(found)


def say_over_budget(name: str, budget_seconds: float) -> None:
    say_once(
        f"gradient {name}",
        f"the gradient of {name} was not checked: that takes longer than "
        f"{budget_seconds:g} s. Give a larger budget, or a smaller example to "
        "firstlight.telemetry.check_gradient.",
    )


class _OverBudget(Exception):  # noqa: N818 (no error)
    pass


def _as_jax_has_it(leaf: Any) -> Any:
    """On the host. JAX computes with half of the digits of a Python float, unless told otherwise,
    and so with coarser differences."""
    import jax
    import numpy as np

    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _is_real(array: Any) -> bool:
    return bool(array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float")))


def _direction(array: Any, random: Any) -> Any:
    """Signs drawn at random, each as large as the number it moves; a zero is as large as others."""
    import numpy as np

    if not _is_real(array):
        return None
    signs = random.choice([-1.0, 1.0], size=array.shape)
    sizes = np.abs(array.astype(float))
    others = float(np.sqrt(np.mean(sizes**2))) if sizes.size else 0.0
    return signs * np.where(sizes > 0, sizes, others or 1.0)
