"""Programs of JAX (jaxprs) as data: what is in them, a part of one, one with other operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from firstlight.telemetry.differences import NotChecked, NotCheckedError


def inner_programs(equation: Any) -> Iterator[Any]:
    """The programs within an equation, closed."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    for parameter in equation.params.values():
        for one in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            if isinstance(one, ClosedJaxpr):
                yield one
            elif isinstance(one, Jaxpr) and not one.constvars:
                yield ClosedJaxpr(one, [])


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Those of inner programs too."""
    for equation in jaxpr.eqns:
        yield equation
        yield from _equations_within(equation)


def _equations_within(equation: Any) -> Iterator[Any]:
    for program in inner_programs(equation):
        yield from all_equations(program.jaxpr)


def leading_to(wanted: Sequence[Any], equations: Sequence[Any]) -> list[Any]:
    """The equations, in their order, of which these variables come."""
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
        # That devices meet is no effect on the outside.
        effects = [e for e in equation.effects if type(e).__name__ != "NamedAxisEffect"]
        if effects or any("callback" in name for name in names):
            raise NotCheckedError(NotChecked.EFFECTS)


def evaluated(program: Any, values: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """Variables of a closed program, of which no more than that is evaluated."""
    from jax.extend.core import jaxpr_as_fun

    equations = leading_to(wanted, program.jaxpr.eqns)
    refuse_effects(equations)
    part = program.jaxpr.replace(eqns=equations, outvars=list(wanted), effects=frozenset())
    return list(jaxpr_as_fun(program.replace(jaxpr=part))(*values))


def call(jaxpr: Any, *values: Any) -> Any:
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    return jaxpr_as_fun(ClosedJaxpr(jaxpr, []))(*values)[0]


def for_differences(jaxpr: Any) -> Any:
    """With `_hold` in place of every `stop_gradient`, and with all digits in products of matrices,
    of which accelerators leave some out unless told otherwise; within inner programs too."""
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
        if name == "pallas_call":  # whose inner program is no program of arrays
            return equation
        return equation.replace(params={n: changed(value) for n, value in about.items()})

    return jaxpr.replace(eqns=[replaced(equation) for equation in jaxpr.eqns])


@cache
def _hold() -> Any:
    """An operation that returns what it is given, and of a batch the first one for all."""
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
