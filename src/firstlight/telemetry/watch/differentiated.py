"""Extracts the function whose gradient a program takes from the program.

If `jax.grad` is called while JAX traces a program (in a jitted step, in the body of a scan), the
value and its gradient become equations of that program, and `TracedGradient` records their
variables. Given arguments of the program, the equations that lead to the gradient are evaluated,
custom rules included, and those of the value again at other points. The program's Python code is
not run again, and the program does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.telemetry.differences import NotChecked, NotCheckedError
from firstlight.telemetry.watch.equations import (
    Shards,
    all_equations,
    call,
    evaluated,
    for_differences,
    inner_programs,
    refuse_effects,
    variables,
)

#: Primitives whose inner program has the same inputs.
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2"}
    | {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
)
#: One of several processes cannot evaluate a program with these primitives alone.
_SPREAD = frozenset({"shard_map", "sharding_constraint", "reshard", "xla_pmap", "pmap"})
_STEPWISE = frozenset({"round", "floor", "ceil", "sign", "argmax", "argmin", "nextafter"})


@dataclass(frozen=True)
class ProgramValue:
    """A value in a program: its variable, and its axis of `jax.vmap`, if any."""

    variable: Any
    axis: int | None


@dataclass(frozen=True, eq=False)
class TracedGradient:
    """A gradient taken within a program."""

    name: str  # of the function
    variables: tuple[ProgramValue | None, ...]  # None: it cannot be moved alone
    gradient: tuple[ProgramValue | None, ...]
    value: ProgramValue
    equations: tuple[Any, ...]  # that compute the value
    passes_on: bool  # a custom rule returns its input


@dataclass(frozen=True)
class Entered:
    """An equation, and one of its inner programs."""

    equation: Any
    program: Any  # closed
    branch: int


@dataclass(frozen=True)
class LocatedGradient:
    """A gradient, and the path of inner programs that leads to it."""

    taken: TracedGradient
    within: tuple[Entered, ...]


def gradients_in(program: Any, known: Iterable[TracedGradient]) -> Iterator[LocatedGradient]:
    """The known gradients in a closed program."""
    return _found_in(program, {g.variable: taken for taken in known for g in taken.gradient if g})


def _found_in(program: Any, parts: Mapping[Any, TracedGradient]) -> Iterator[LocatedGradient]:
    for taken in dict.fromkeys(parts[v] for v in _all_variables(program) if v in parts):
        yield LocatedGradient(taken, ())
    for equation in program.jaxpr.eqns:
        for branch, inner in enumerate(inner_programs(equation)):
            if inner is equation.params.get("cond_jaxpr"):
                continue  # the condition of a `while`
            for found in _found_in(inner, parts):
                yield LocatedGradient(
                    found.taken, (Entered(equation, inner, branch), *found.within)
                )


def _all_variables(program: Any) -> Iterator[Any]:
    yield from program.jaxpr.constvars
    yield from program.jaxpr.invars
    for equation in program.jaxpr.eqns:
        yield from equation.outvars


class Differentiated:
    """Evaluates a gradient of a program, and the function that it is the gradient of.

    Raises:
        NotCheckedError: It cannot be evaluated on its own.
    """

    def __init__(self, program: Any, found: LocatedGradient, jit: Callable[..., Any]) -> None:
        self._program, self._found = program, found
        taken = found.taken
        there = set(_all_variables(found.within[-1].program if found.within else program))
        self._pairs = _pairs(taken, there)
        batched = any(p.axis is not None for pair in self._pairs for p in pair)
        self._moved = list(dict.fromkeys(x.variable for x, _ in self._pairs))
        self._function, self._held = _function_of(program.jaxpr, taken, self._moved)
        is_here = there.issuperset([*self._moved, *self._held])
        if not (self._pairs and is_here) or (batched and taken.value.axis is None):
            raise NotCheckedError(NotChecked.OUT_OF_REACH)
        spread = [e for e in found.within if e.equation.primitive.name == "shard_map"]
        self._shards = Shards.of(spread[0].equation) if spread else None
        self._equations = list(all_equations(self._function))
        self._function = for_differences(self._function)
        stops = any(e.primitive.name == "stop_gradient" for e in self._equations)
        self.sample, self.value = jit(self._sample), jit(self._beside if stops else self._at)

    @property
    def moved_bytes(self) -> int:
        return sum(v.aval.size * v.aval.dtype.itemsize for v in self._moved)

    def is_on_purpose(self) -> bool:
        """Whether a custom rule may intend another gradient: a clipped or reversed one, or one
        passed through a rounding."""
        return self._found.taken.passes_on or any(
            e.primitive.name in _STEPWISE for e in self._equations
        )

    def is_spread(self) -> bool:
        """Whether several processes may have to evaluate the program together."""
        return any(e.primitive.name in _SPREAD for e in all_equations(self._program.jaxpr))

    def epsilon(self) -> float:
        """The machine epsilon of the lowest precision in the function."""
        import jax

        kinds = {
            v.aval.dtype
            for e in self._equations
            for v in (*e.invars, *e.outvars)
            if jax.numpy.issubdtype(getattr(v.aval, "dtype", None), jax.numpy.floating)
        }
        return max((float(jax.numpy.finfo(kind).eps) for kind in kinds), default=0.0)

    def _sample(self, *arguments: Any) -> Any:
        """Whether the program reaches the gradient with these arguments, and there: the moved
        variables, the gradient, and the other inputs of the function. In a loop, at the first
        iteration."""
        comes, found = self._sampled(self._program, list(arguments), self._found.within)
        number = len(self._moved)
        return comes, found[:number], found[number : 2 * number], found[2 * number :]

    def _sampled(
        self, program: Any, values: list[Any], within: tuple[Entered, ...]
    ) -> tuple[Any, list[Any]]:
        if not within:
            slopes = [g.variable for _, g in self._pairs]
            found = evaluated(program, values, [*self._moved, *slopes, *self._held])
            x, rest = found[: len(self._moved)], found[len(self._moved) :]
            return True, x + self._by_variable(x, rest[: len(slopes)]) + rest[len(slopes) :]
        entered, further = within[0], within[1:]
        name = entered.equation.primitive.name
        values = evaluated(program, values, entered.equation.invars)
        if name == "shard_map" and self._shards is not None:
            return True, self._on_shards(self._shards, entered.program, values, further)
        comes, found = self._sampled(entered.program, _inputs(entered, values), further)
        return (comes & (values[0] == entered.branch) if name == "cond" else comes), found

    def _on_shards(
        self, shards: Shards, program: Any, values: list[Any], within: tuple[Entered, ...]
    ) -> list[Any]:
        if any(entered.equation.primitive.name in ("cond", "shard_map") for entered in within):
            raise NotCheckedError(NotChecked.OUT_OF_REACH)  # only some devices may reach it
        specs = shards.specs([*self._moved, *self._moved, *self._held])
        run = shards.run(
            lambda *local: self._sampled(program, list(local), within)[1], shards.in_specs, specs
        )
        return list(run(*values))

    def _by_variable(self, x: list[Any], slopes: list[Any]) -> list[Any]:
        sums: dict[Any, Any] = {}
        shapes = {v: one.shape for v, one in zip(self._moved, x, strict=True)}
        for (place, slope), given in zip(self._pairs, slopes, strict=True):
            shaped = _shaped_like(place, slope, given, shapes[place.variable])
            sums[place.variable] = sums.get(place.variable, 0) + shaped
        return [sums[v] for v in self._moved]

    def _at(self, x: list[Any], _: list[Any], held: list[Any]) -> Any:
        return self._value(*x, *held)

    def _beside(self, x: list[Any], center: list[Any], held: list[Any]) -> Any:
        """The value at `x`, with the inputs of `stop_gradient` as at `center`.

        Both points are evaluated as a batch, in which `_hold` uses the first for all.
        """
        import jax

        both = [jax.numpy.stack(pair) for pair in zip(center, x, strict=True)]
        return jax.vmap(lambda *moved: self._value(*moved, *held))(*both)[1]

    def _value(self, *values: Any) -> Any:
        if self._shards is None:
            return call(self._function, *values).sum()
        specs = self._shards.specs([*self._moved, *self._held])
        out = self._shards.specs([self._found.taken.value.variable])

        def on_each(*local: Any) -> list[Any]:
            own = [one[0] if spec else one for one, spec in zip(local, specs, strict=True)]
            return [call(self._function, *own).sum()]

        return self._shards.run(on_each, specs, out)(*values)[0].sum()


def _pairs(taken: TracedGradient, there: set[Any]) -> list[tuple[ProgramValue, ProgramValue]]:
    """Variables with their parts of the gradient, if the program has them: unused parts are
    removed from it. A variable may have several parts, and then needs all."""
    pairs = [(x, g) for x, g in zip(taken.variables, taken.gradient, strict=True) if x]
    lacking = {x.variable for x, g in pairs if g is None or g.variable not in there}
    return [(x, g) for x, g in pairs if g is not None and x.variable not in lacking]


def _function_of(jaxpr: Any, taken: TracedGradient, moved: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The value as a program of the moved variables and of held ones, computed before."""
    equations, value = list(taken.equations), taken.value.variable
    refuse_effects(equations)
    made = {v for e in equations for v in e.outvars}
    used = dict.fromkeys(v for e in equations for v in variables(e.invars))
    held = [v for v in used if v not in made and v not in moved]
    function = jaxpr.replace(
        constvars=[], invars=[*moved, *held], outvars=[value], eqns=equations, effects=frozenset()
    )
    return function, held


def _inputs(entered: Entered, values: list[Any]) -> list[Any]:
    """The inputs of an inner program; those of a loop are for its first iteration."""
    name, about = entered.equation.primitive.name, entered.equation.params
    if name in _CALLS:
        return values
    if name == "cond":
        return values[1:]
    if name == "while":
        return values[about["cond_nconsts"] :]
    if name == "scan" and about["length"] > 0:
        first = -1 if about["reverse"] else 0
        dimensions = [v.aval.ndim for v in entered.program.jaxpr.invars]
        pairs = zip(values, dimensions, strict=True)
        return [one[first] if one.ndim > there else one for one, there in pairs]
    raise NotCheckedError(NotChecked.OUT_OF_REACH)


def _shaped_like(
    variable: ProgramValue, slope: ProgramValue, given: Any, shape: tuple[int, ...]
) -> Any:
    """The gradient of the sum over a `vmap`, in the shape of its variable."""
    import jax

    if slope.axis is not None and variable.axis is None:
        return given.sum(slope.axis)
    if slope.axis is not None:
        return jax.numpy.moveaxis(given, slope.axis, variable.axis)
    if variable.axis is not None:
        given = jax.numpy.expand_dims(given, variable.axis)
    return jax.numpy.broadcast_to(given, shape)
