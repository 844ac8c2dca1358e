"""Compares a gradient with finite differences along one random direction, in bounded time.

For a direction v, the derivative of f along v is ⟨∇f, v⟩, and the limit of
(f(x + hv) − f(x − hv)) / 2h. The uncertainty of a difference is estimated from another step size,
from its two one-sided differences, which disagree at a kink (such as a ReLU's), and from the
rounding of f. The gradient is compared with the most certain of three step sizes.
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

#: Relative tolerances by machine epsilon: differences are no more accurate.
_TOLERANCES = {1e-15: 1e-5, 1e-6: 2e-2}
_LOW_PRECISION_TOLERANCE = 0.2
#: Relative to the derivative: less certain differences are inconclusive.
_MAX_UNCERTAINTY = 0.1
#: A gradient is wrong if it is off by so many uncertainties, which are only estimates.
_MIN_DEVIATION = 4.0
#: Number of step sizes, and the ratio between them.
_STEPS, _STEP_RATIO = 3, 4


class Verdict(Enum):
    OK = "ok"
    WRONG = "wrong"
    UNCERTAIN = "uncertain"  # the differences do not agree with each other
    OVER_BUDGET = "over_budget"
    NOT_COMPARABLE = "not_comparable"  # it differs, perhaps on purpose


class NotChecked(Enum):
    """Why there was no comparison."""

    EFFECTS = "effects"  # callbacks would be called again
    NOT_ADDRESSABLE = "not_addressable"  # other processes would have to take part
    OUT_OF_REACH = "out_of_reach"  # its inputs cannot be isolated
    ERROR = "error"


class NotCheckedError(Exception):
    def __init__(self, reason: NotChecked) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True)
class GradientCheck:
    verdict: Verdict
    #: Error of the derivative along the direction; None if the differences are inconclusive.
    relative_error: float | None = None


class Comparison:
    """One check. An exception of the function leaves it uncertain.

    Args:
        function: Scalar function of `x`, a tree of arrays, and of `rest`.
        budget_seconds: No evaluation is started that would exceed it, judging by the previous one.
        seed: Seed of the random direction.
        steps: Of the watch, if the process is watched: evaluations are not counted as its steps.
        epsilon: Machine epsilon of the computation, if larger than that of `x`.
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
        """Estimate the derivative by differences."""
        self._safely(self._differences)

    def compare(self, gradient: Callable[[], Any]) -> None:
        """Compare the gradient with the estimate, if there is one."""
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
        else:  # also if the gradient is NaN
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
    """The (uncertainty, derivative) at zero with the least uncertainty."""
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
        f"the gradient of {name} was not checked, which would take longer than "
        f"{budget_seconds:g} s. Give a larger budget, or a smaller example to "
        "firstlight.telemetry.check_gradient.",
    )


class _OverBudget(Exception):  # noqa: N818 (not an error)
    pass


def _as_jax_has_it(leaf: Any) -> Any:
    """A leaf on the host, in the dtype that JAX computes with: by default 32 bits for floats."""
    import jax
    import numpy as np

    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _is_real(array: Any) -> bool:
    return bool(array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float")))


def _direction(array: Any, random: Any) -> Any:
    """Random signs, scaled by the numbers that they move, and by their rms where those are zero."""
    import numpy as np

    if not _is_real(array):
        return None
    signs = random.choice([-1.0, 1.0], size=array.shape)
    sizes = np.abs(array.astype(float))
    others = float(np.sqrt(np.mean(sizes**2))) if sizes.size else 0.0
    return signs * np.where(sizes > 0, sizes, others or 1.0)
