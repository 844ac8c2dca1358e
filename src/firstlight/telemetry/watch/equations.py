"""JAX programs (jaxprs) as data: inspecting, cutting and changing them, also on many devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from firstlight.telemetry.differences import NotChecked, NotCheckedError


def inner_programs(equation: Any) -> Iterator[Any]:
    """The closed programs within an equation."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    for parameter in equation.params.values():
        for one in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            if isinstance(one, ClosedJaxpr):
                yield one
            elif isinstance(one, Jaxpr) and not one.constvars:
                yield ClosedJaxpr(one, [])


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, including those of inner programs."""
    for equation in jaxpr.eqns:
        yield equation
        yield from _equations_within(equation)


def _equations_within(equation: Any) -> Iterator[Any]:
    for program in inner_programs(equation):
        yield from all_equations(program.jaxpr)


def leading_to(wanted: Sequence[Any], equations: Sequence[Any]) -> list[Any]:
    """The equations, in order, that compute these variables."""
    needed = set(variables(wanted))
    found = []
    for equation in reversed(equations):
        if not needed.isdisjoint(equation.outvars):
            found.append(equation)
            needed.update(variables(equation.invars))
    return found[::-1]


def variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if not hasattr(atom, "val")]  # a literal has one


def refuse_effects(equations: Sequence[Any]) -> None:
    for equation in equations:
        names = [equation.primitive.name, *(e.primitive.name for e in _equations_within(equation))]
        # Communication between devices is not an external effect.
        effects = [e for e in equation.effects if type(e).__name__ != "NamedAxisEffect"]
        if effects or any("callback" in name for name in names):
            raise NotCheckedError(NotChecked.EFFECTS)


def evaluated(program: Any, values: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """The values of variables of a closed program, evaluating only what they need."""
    from jax.extend.core import jaxpr_as_fun

    equations = leading_to(wanted, program.jaxpr.eqns)
    refuse_effects(equations)
    part = program.jaxpr.replace(eqns=equations, outvars=list(wanted), effects=frozenset())
    return list(jaxpr_as_fun(program.replace(jaxpr=part))(*values))


def call(jaxpr: Any, *values: Any) -> Any:
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    return jaxpr_as_fun(ClosedJaxpr(jaxpr, []))(*values)[0]


def for_differences(jaxpr: Any) -> Any:
    """A program with `_hold` for every `stop_gradient`, and products of matrices in full precision,
    which accelerators reduce by default; in inner programs too."""
    from jax.extend.core import ClosedJaxpr, Jaxpr
    from jax.lax import Precision

    def changed(parameter: Any) -> Any:
        if isinstance(parameter, Jaxpr):
            return for_differences(parameter)
        if isinstance(parameter, ClosedJaxpr):
            return parameter.replace(jaxpr=for_differences(parameter.jaxpr))
        return tuple(map(changed, parameter)) if type(parameter) is tuple else parameter

    def replaced(equation: Any) -> Any:
        name, about = equation.primitive.name, equation.params
        if name == "stop_gradient":
            return equation.replace(primitive=_hold())
        if name in ("dot_general", "conv_general_dilated") and about["precision"] is None:
            precision = (Precision.HIGHEST, Precision.HIGHEST)
            return equation.replace(params={**about, "precision": precision})
        if name == "pallas_call":  # its inner program is not one of arrays
            return equation
        return equation.replace(params={n: changed(value) for n, value in about.items()})

    return jaxpr.replace(eqns=[replaced(equation) for equation in jaxpr.eqns])


@cache
def _hold() -> Any:
    """A primitive that returns its input and, for a batch, the first element for all."""
    from jax import numpy as jnp
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir

    hold = Primitive("firstlight_hold")
    hold.def_impl(lambda x: x)
    hold.def_abstract_eval(lambda x: x)
    mlir.register_lowering(hold, lambda _, x: [x])

    def first_for_all(arguments: Any, axes: Any) -> Any:
        (x,), (axis,) = arguments, axes
        first = jnp.take(x, jnp.array([0]), axis=axis)
        return jnp.broadcast_to(first, x.shape), axis

    batching.primitive_batchers[hold] = first_for_all
    return hold


@dataclass(frozen=True)
class Shards:
    """The devices of a `shard_map`. Arrays that differ between devices are stacked along a new
    first axis; replicated ones are not.

    A gradient is that of the sum over all devices, which counts a replicated value once.
    """

    mesh: Any
    in_specs: Any
    is_checked: bool  # JAX tracks which arrays are replicated

    @classmethod
    def of(cls, equation: Any) -> Shards:
        about = equation.params
        manual = about.get("newly_manual_axes", about.get("manual_axes"))
        if manual is None or set(manual) != set(about["mesh"].axis_names):
            raise NotCheckedError(NotChecked.OUT_OF_REACH)
        return cls(about["mesh"], about["in_specs"], bool(about["check_vma"]))

    def specs(self, variables: Sequence[Any]) -> tuple[Any, ...]:
        """Partition specs for these variables of the inner program."""
        return tuple(self._spec(variable.aval) for variable in variables)

    def run(
        self, body: Callable[..., list[Any]], in_specs: Any, out_specs: tuple[Any, ...]
    ) -> Callable[..., list[Any]]:
        """`body` on every device, with a new first axis for results that differ between devices."""
        import jax

        def on_each(*values: Any) -> tuple[Any, ...]:
            found = zip(body(*values), out_specs, strict=True)
            return tuple(one[None] if spec else one for one, spec in found)

        made: Callable[..., list[Any]] = jax.shard_map(
            on_each,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=self.is_checked,
        )
        return made

    def _spec(self, aval: Any) -> Any:
        import jax

        known = getattr(aval, "vma", None)
        if known is None:
            known = aval.mat.varying
        axes = [n for n in self.mesh.axis_names if n in known or not self.is_checked]
        return jax.P(tuple(axes)) if axes else jax.P()
