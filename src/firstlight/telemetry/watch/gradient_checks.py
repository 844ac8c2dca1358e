"""Schedules and runs checks of a program's gradients: rarely, in bounded time, no false alarms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any
from weakref import WeakSet

from firstlight.telemetry.differences import (
    Comparison,
    GradientCheck,
    NotChecked,
    NotCheckedError,
    Verdict,
    say_over_budget,
)
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.differentiated import (
    Differentiated,
    LocatedGradient,
    TracedGradient,
    gradients_in,
)
from firstlight.telemetry.watch.guard import guarded
from firstlight.telemetry.watch.steps import Steps
from firstlight.trace.record.program_errors import pass_on

#: Share of the time since the first gradient that all checks together may take.
_MAX_SHARE = 1 / 100
_EVERY_SECONDS = 600.0
#: Minimum of the expected cost of a check.
_MIN_SECONDS = 0.05
#: A check neither moves nor copies more than this.
_MAX_BYTES = 64 * 2**20
#: Compiled gradients kept per program.
_MAX_READY = 8
_NEVER = float("inf")

Note = Callable[[GradientCheck | NotChecked], None]


class Allowance:
    """The time that all checks of a process may take."""

    def __init__(self, budget_seconds: float) -> None:
        self.budget_seconds = budget_seconds  # per check
        self.since: float | None = None  # time of the first gradient
        self.spent_seconds = 0.0

    def due(self, cost_seconds: float) -> float:
        """The time from which on a check of this cost is allowed."""
        if self.since is None:
            self.since = monotonic()
        cost = self.spent_seconds + max(cost_seconds, _MIN_SECONDS)
        return self.since + cost / _MAX_SHARE


class ProgramChecks:
    """Checks of the gradients within one jitted function."""

    def __init__(
        self,
        function: Any,
        known: Collection[TracedGradient],
        allowance: Allowance,
        steps: Steps,
        note: Note,
        jit: Any,
    ) -> None:
        self._function, self._known, self._allowance = function, known, allowance
        self._steps, self._note, self._jit = steps, note, jit
        self.next_check = 0.0
        self._is_closed = False
        self._closed: WeakSet[TracedGradient] = WeakSet()  # gradients no longer checked
        self._suspected: WeakSet[TracedGradient] = WeakSet()
        self._ready: dict[TracedGradient, Differentiated] = {}
        self._donated: frozenset[int] = frozenset()  # positions of donated leaves
        self._turn = 0  # selects the gradient, and seeds the direction

    def renew(self) -> None:
        """Look for new gradients at the next call."""
        if not self._is_closed:
            self.next_check = 0.0

    def kept(
        self, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with copies of those that the call will donate."""
        import jax

        if not self._donated:
            return arguments, named
        leaves, tree = jax.tree_util.tree_flatten((arguments, named))
        donated = [leaf for n, leaf in enumerate(leaves) if n in self._donated]
        if sum(getattr(leaf, "nbytes", 0) for leaf in donated) > _MAX_BYTES:
            self._close()
        else:
            leaves = [x.copy() if n in self._donated else x for n, x in enumerate(leaves)]
        kept: tuple[tuple[Any, ...], dict[str, Any]] = tree.unflatten(leaves)
        return kept

    def check(self, arguments: tuple[Any, ...], named: dict[str, Any], cost_seconds: float) -> bool:
        """Check a gradient of a call with these arguments, if one is due; returns whether it was.

        Never raises.

        Args:
            cost_seconds: Compile time of the function, about the cost of a check.
        """
        due, begin = self._allowance.due(cost_seconds), monotonic()
        if begin < due:
            self.next_check = due
            return False
        if self._is_closed:
            return False
        self.next_check = _NEVER  # if there is no gradient
        with self._steps.ours():
            guarded(self._check)(arguments, named, cost_seconds)
        self._allowance.spent_seconds += monotonic() - begin
        return True

    def _check(
        self, arguments: tuple[Any, ...], named: dict[str, Any], cost_seconds: float
    ) -> None:
        import jax

        if cost_seconds > self._allowance.budget_seconds:
            self._close()
            return
        leaves = jax.tree_util.tree_leaves((arguments, named))
        gone = [n for n, leaf in enumerate(leaves) if _is_deleted(leaf)]
        if gone:
            self._donated = frozenset(gone)
            self.next_check = 0.0
            return
        program = self._function.trace(*arguments, **named).jaxpr
        found = [f for f in gradients_in(program, self._known) if f.taken not in self._closed]
        if not found:
            return
        one = found[self._turn % len(found)]
        self._turn += 1
        self.next_check = 0.0 if len(found) > 1 else _NEVER  # if this one is closed
        values = _array_arguments(self._function, arguments, named)
        result = self._result(program, one, values)
        if result is not None:
            self._note(result)
        self._go_on(one.taken, result)

    def _go_on(self, taken: TracedGradient, result: GradientCheck | NotChecked | None) -> None:
        """Schedule the next check."""
        if isinstance(result, NotChecked):
            self._closed.add(taken)
        elif result is not None and result.verdict is Verdict.OVER_BUDGET:
            self._closed.add(taken)
            say_over_budget(taken.name, self._allowance.budget_seconds)
        elif result is None or (taken in self._suspected and result.verdict is Verdict.UNCERTAIN):
            self.next_check = 0.0
        else:
            self.next_check = monotonic() + _EVERY_SECONDS
            if result.verdict is Verdict.WRONG:
                _say_wrong(taken.name)

    def _result(
        self, program: Any, found: LocatedGradient, values: Sequence[Any]
    ) -> GradientCheck | NotChecked | None:
        """The result; None if the call did not reach the gradient."""
        import jax

        try:
            if not all(getattr(value, "is_fully_addressable", True) for value in values):
                return NotChecked.NOT_ADDRESSABLE
            ready = self._ready.get(found.taken) or Differentiated(program, found, self._jit)
            if jax.process_count() > 1 and ready.is_spread():
                return NotChecked.NOT_ADDRESSABLE
            if ready.moved_bytes > _MAX_BYTES:
                return GradientCheck(Verdict.OVER_BUDGET)
            if len(self._ready) >= _MAX_READY:
                self._ready.clear()
            self._ready[found.taken] = ready
            return self._compared(ready, found.taken, values)
        except NotCheckedError as refused:
            return refused.reason
        except Exception as error:
            pass_on(error)
            text = f"{type(error).__name__}: {error}"[:300]
            say_once(
                "gradient check", f"the gradient of {found.taken.name} was not checked: {text}"
            )
            return NotChecked.ERROR

    def _compared(
        self, ready: Differentiated, taken: TracedGradient, values: Sequence[Any]
    ) -> GradientCheck | None:
        """Compare without false alarms, since nobody requested the check: a gradient is reported
        wrong if it is so along two directions, at two calls, and no custom rule explains it."""
        end = monotonic() + self._allowance.budget_seconds
        comes, x, gradient, held = ready.sample(*values)
        if not comes:
            return None
        ready.value.trace(x, x, held)  # an error here says nothing about the gradient
        for attempt in range(2):
            check = Comparison(
                lambda moved: ready.value(moved, x, held),
                x,
                (),
                end - monotonic(),
                2 * self._turn + attempt,
                self._steps,
                ready.epsilon(),
            )
            check.evaluate()
            check.compare(lambda: gradient)
            if check.result.verdict is not Verdict.WRONG:
                self._suspected.discard(taken)
                return GradientCheck(Verdict.UNCERTAIN) if attempt else check.result
        if ready.is_on_purpose():
            return GradientCheck(Verdict.NOT_COMPARABLE)
        if taken in self._suspected:
            return check.result
        self._suspected.add(taken)
        return GradientCheck(Verdict.UNCERTAIN)

    def _close(self) -> None:
        self._is_closed, self.next_check = True, _NEVER
        self._note(GradientCheck(Verdict.OVER_BUDGET))
        name = getattr(self._function, "__name__", "function")
        say_over_budget(name, self._allowance.budget_seconds)


def _array_arguments(function: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """In the order of the variables of the function's program."""
    import jax

    about = function._jit_info
    given = [a for n, a in enumerate(arguments) if n not in about.static_argnums]
    others = {name: a for name, a in named.items() if name not in about.static_argnames}
    leaves: list[Any] = jax.tree_util.tree_leaves((tuple(given), others))
    return leaves


def _say_wrong(name: str) -> None:
    say_once(
        f"wrong gradient {name}",
        f"the gradient of {name} disagrees with differences, along several directions and at "
        "several calls: is a custom rule (custom_vjp) wrong?",
    )


def _is_deleted(leaf: Any) -> bool:
    is_deleted = getattr(leaf, "is_deleted", None)
    return is_deleted is not None and is_deleted()
