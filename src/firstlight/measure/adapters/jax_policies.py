"""JAX under the policies `frozen` and `tiered`, which replace `jax.jit` in timed processes.

Untimed processes compile as usual: they describe the program, and store the frozen functions.
"""

import os

from firstlight.measure.adapters.jax import JaxJit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any

    from firstlight.measure.adapters import Function

    Calls = dict[tuple[Hashable, ...], tuple[object, ...]]  # arguments, by their signature


class JaxFrozen(JaxJit):
    """Loads functions that a priming process froze, in processes that compile nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = os.environ["FIRSTLIGHT_FROZEN"]
        # The functions to freeze, each with its recorded calls by signature.
        self._frozen: "list[tuple[Function, Calls]]" = []

    def compile(self, function: "Function") -> "Function":
        path = os.path.join(self._folder, f"{len(self._frozen)}.frozen")
        calls: "Calls" = {}
        self._frozen.append((function, calls))
        if self._recording:
            return self._remembering(super().compile(function), calls)
        return _loaded_at_first_call(path)

    def _remembering(self, jitted: "Function", calls: "Calls") -> "Function":
        def call(*arguments: object) -> object:
            leaves, tree = self._jax.tree_util.tree_flatten(arguments)
            key = (tree, *[self._jax.typeof(leaf) for leaf in leaves])
            calls.setdefault(key, arguments)
            return jitted(*arguments)

        return call

    def leave_behind(self) -> None:
        from firstlight.warmstart import freeze

        for number, (function, calls) in enumerate(self._frozen):
            if calls:
                path = os.path.join(self._folder, f"{number}.frozen")
                freeze(function, *calls.values(), path=path)

    def phases_ns(self) -> "dict[str, int | None]":
        return dict(self._spent_ns)


def _loaded_at_first_call(path: str) -> "Function":
    """Loads a frozen function as a user's program would: as part of the first call."""
    loaded: "list[Function]" = []

    def call(*arguments: object) -> object:
        if not loaded:
            from firstlight.warmstart import load

            loaded.append(load(path, with_jax=True))
        return loaded[0](*arguments)

    return call


class JaxTiered(JaxJit):
    """Functions whose first calls run in NumPy; warm calls start after the switch to XLA."""

    def __init__(self) -> None:
        super().__init__()
        # What one process learns about a program must not affect the next.
        os.environ["FIRSTLIGHT_CACHE"] = "off"
        self._tiered: "list[Any]" = []

    def compile(self, function: "Function") -> "Function":
        if self._recording:
            return super().compile(function)
        from firstlight.warmstart import tiered

        answering: "Function" = tiered(function)
        self._tiered.append(answering)
        return answering

    def phases_ns(self) -> "dict[str, int | None]":
        return dict(self._spent_ns)

    def settle(self) -> None:
        for function in self._tiered:
            function.wait()

    def tier_counts(self) -> "dict[str, int]":
        switches = [switch for function in self._tiered for switch in function.switches]
        calls = sum(s.numpy_calls for s in switches)
        in_numpy = sum(s.numpy_calls * (s.numpy_call_seconds or 0.0) for s in switches)
        compiling = sum(s.compile_seconds or 0.0 for s in switches)
        # Like `break_even_calls` of one switch, but for all signatures together.
        even = {"numpy_break_even_calls": int(compiling * calls / in_numpy) + 1} if in_numpy else {}
        return {
            **even,
            "signatures": len(switches),
            "signatures_begun_in_numpy": sum(s.first_tier.value == "numpy" for s in switches),
            "signatures_switched": sum(s.switched for s in switches),
            "numpy_calls": calls,
        }
