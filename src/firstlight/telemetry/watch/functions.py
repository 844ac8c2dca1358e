"""The series of each function, for a limited number of functions, and checks of their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

OTHER = "other"
#: Names known only from JAX's events: mostly single operations.
_MAX_OPERATIONS = 50
#: Number of results whose lifetime is tracked per function, and seconds between them.
_MAX_FOLLOWED = 32
_FOLLOW_SECONDS = 1.0
#: Larger results are not fetched from the device to look for NaN.
_MAX_SIZE = 4096


class Function:
    """The series of all functions with one name."""

    def __init__(self, name: str, values: Values) -> None:
        self.name, self._values = name, values
        self.ok = values.counter(metrics.STEPS, name, "ok")
        self.errors = values.counter(metrics.STEPS, name, "error")
        self.durations = {
            phase: values.histogram(metrics.STEP_DURATION, name, phase)
            for phase in ("warm", "cold")
        }
        self.holds_result: bool | None = None  # whether results are small enough to be held
        self.array_type: type | None = None
        self.followed: list[tuple[float, ref[Any]]] = []  # tracked results with their times
        self.unchecked: tuple[ref[Any], ...] = ()  # results not yet checked for NaN
        self.follow_again = 0.0  # when to track the next result

    def failed(self, error: Exception) -> None:
        self.errors.add()
        if "RESOURCE_EXHAUSTED" in str(error):
            self._values.counter(metrics.OUT_OF_MEMORY, self.name).add()

    def follow(self, arrays: list[Any], now: float) -> None:
        """Track the lifetime of these results, to attribute leaks."""
        self.follow_again = now + _FOLLOW_SECONDS
        self.unchecked = tuple(map(ref, arrays))
        self.followed += [(now, result) for result in self.unchecked]
        if len(self.followed) > _MAX_FOLLOWED:
            self.followed = [one for one in self.followed if one[1]() is not None]
        if len(self.followed) > _MAX_FOLLOWED:
            self.followed = self.followed[::2]  # keeps old and new ones

    def alive(self, since: float) -> tuple[list[float], list[Any]]:
        """Times and arrays of tracked results since then that are still alive."""
        held = [(then, result()) for then, result in list(self.followed) if then >= since]
        alive = [(t, array) for t, array in held if array is not None and not array.is_deleted()]
        return [then for then, _ in alive], [array for _, array in alive]


class Compiles:
    """The series of compiles of one name."""

    def __init__(self, name: str, values: Values) -> None:
        self._is_named = name != OTHER
        self._sources = {
            source: values.counter(metrics.COMPILES, name, source)
            for source in ("compiler", "cache")
        }
        self._recompiles = values.counter(metrics.RECOMPILES, name)
        self.seconds = values.counter(metrics.COMPILE_SECONDS, name)
        self.saved_seconds = 0.0  # by the cache

    @property
    def cost_seconds(self) -> float:
        """The mean time of one compile without the cache."""
        count = sum(counter.value for counter in self._sources.values())
        return (self.seconds.value + self.saved_seconds) / max(1.0, count)

    def add(self, source: str) -> None:
        # Under "other", compiles of the same function cannot be told from those of another.
        if self._is_named and any(counter.value for counter in self._sources.values()):
            self._recompiles.add()
        self._sources[source].add()


class Functions:
    """Series by name of function, for at most `limit` names; all others share one."""

    def __init__(self, values: Values, limit: int) -> None:
        self._values, self._limit = values, limit
        self._steps: dict[str, Function] = {}
        self._compiles: dict[str, Compiles] = {}
        self._operations = 0
        self._labels: set[str] = set()

    def __iter__(self) -> Iterator[Function]:
        return iter(list(self._steps.values()))

    def label(self, name: str) -> str:
        """The name, or "other" beyond the limit; for metrics of neither steps nor compiles."""
        if name not in self._labels and len(self._labels) >= self._limit:
            return OTHER
        self._labels.add(name)
        return name

    def of_steps(self, name: str) -> Function:
        known = self._steps.get(name)
        if known is None:
            if len(self._steps) >= self._limit and name != OTHER:
                return self.of_steps(OTHER)
            known = self._steps[name] = Function(name, self._values)
        return known

    def of_compiles(self, name: str) -> Compiles:
        known = self._compiles.get(name)
        if known is None:
            if name not in self._steps and name != OTHER:
                if self._operations >= _MAX_OPERATIONS:
                    return self.of_compiles(OTHER)
                self._operations += 1
            known = self._compiles[name] = Compiles(name, self._values)
        return known


def check_results(values: Values, functions: Functions) -> None:
    """Check the newest tracked result of every function for NaN."""
    for function in functions:
        found = _checked(function)
        if found is not None:
            values.counter(metrics.CHECKED_RESULTS, function.name, found).add()


def _checked(function: Function) -> str | None:
    """Either nan or finite; None if the results are gone, not ready or too large."""
    import numpy as np

    results, function.unchecked = function.unchecked, ()
    held = [array for one in results if (array := one()) is not None and _may_be_read(array)]
    kinds = [np.asarray(array) for array in held]
    floats = [a for a in kinds if a.dtype.kind in "fcV"]  # V: bfloat16 and its like
    if not floats:
        return None
    return "nan" if any(np.isnan(a).any() for a in floats) else "finite"


def _may_be_read(array: Any) -> bool:
    is_here = not array.is_deleted() and array.is_fully_addressable
    return bool(is_here and array.size <= _MAX_SIZE and array.is_ready())
