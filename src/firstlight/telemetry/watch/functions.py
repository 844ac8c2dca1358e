"""The series of each function. A program may make any number of functions: so many are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import ref

from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values

OTHER = "other"
#: Names that are known from JAX's events only: mostly single operations.
_MAX_OPERATIONS = 50
#: Results whose life is followed, by function, and so many seconds apart.
_MAX_FOLLOWED = 32
_FOLLOW_SECONDS = 1.0


class Function:
    """What is counted of the functions of one name."""

    def __init__(self, name: str, values: Values) -> None:
        self.name, self._values = name, values
        self.ok = values.counter(metrics.STEPS, name, "ok")
        self.errors = values.counter(metrics.STEPS, name, "error")
        self.durations = {
            phase: values.histogram(metrics.STEP_DURATION, name, phase)
            for phase in ("warm", "cold")
        }
        self.holds_result: bool | None = None  # whether its results are small
        self.array_type: type | None = None
        self.followed: list[tuple[float, ref[Any]]] = []  # when, and a result
        self.unchecked: tuple[ref[Any], ...] = ()  # for NaN
        self.follow_again = 0.0  # when the next result is to be followed

    def failed(self, error: Exception) -> None:
        self.errors.add()
        if "RESOURCE_EXHAUSTED" in str(error):
            self._values.counter(metrics.OUT_OF_MEMORY, self.name).add()

    def follow(self, arrays: list[Any], now: float) -> None:
        """Keep track of some results: a leak is known by those that live on."""
        self.follow_again = now + _FOLLOW_SECONDS
        self.unchecked = tuple(map(ref, arrays))
        self.followed += [(now, result) for result in self.unchecked]
        if len(self.followed) > _MAX_FOLLOWED:
            self.followed = [one for one in self.followed if one[1]() is not None]
        if len(self.followed) > _MAX_FOLLOWED:
            self.followed = self.followed[::2]  # old and new ones stay

    def alive(self, since: float) -> tuple[list[float], list[Any]]:
        """Results followed from then on that are alive: since when, and the arrays."""
        held = [(then, result()) for then, result in list(self.followed) if then >= since]
        alive = [(t, array) for t, array in held if array is not None and not array.is_deleted()]
        return [then for then, _ in alive], [array for _, array in alive]


class Compiles:
    """What is counted of the compiles of one name."""

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
        """Of one compile, if the cache did not have it."""
        count = sum(counter.value for counter in self._sources.values())
        return (self.seconds.value + self.saved_seconds) / max(1.0, count)

    def add(self, source: str) -> None:
        # Of what has no name of its own, which are of the same function is not known.
        if self._is_named and any(counter.value for counter in self._sources.values()):
            self._recompiles.add()
        self._sources[source].add()


class Functions:
    """By name, at most `limit` of them; the rest is counted together."""

    def __init__(self, values: Values, limit: int) -> None:
        self._values, self._limit = values, limit
        self._steps: dict[str, Function] = {}
        self._compiles: dict[str, Compiles] = {}
        self._operations = 0
        self._labels: set[str] = set()

    def __iter__(self) -> Iterator[Function]:
        return iter(list(self._steps.values()))

    def label(self, name: str) -> str:
        """The name, or that of the rest; for what is neither a step nor a compile."""
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
