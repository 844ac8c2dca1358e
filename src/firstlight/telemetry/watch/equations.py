"""Programs of JAX (jaxprs) as data: what is in them, a part of one, one with other operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from firstlight.telemetry.differences import NotChecked, NotCheckedError


def inner_programs(equation: Any) -> Iterator[Any]:
    """The programs within an equation, closed. Of a `while`, its body only."""
    from jax.extend.core import ClosedJaxpr, Jaxpr

    for name, parameter in equation.params.items():
        if name == "cond_jaxpr":
            continue
        for one in parameter if isinstance(parameter, (tuple, list)) else (parameter,):
            if isinstance(one, ClosedJaxpr):
                yield one
            elif isinstance(one, Jaxpr) and not one.constvars:
                yield ClosedJaxpr(one, [])


def _equations_within(equation: Any) -> Iterator[Any]:
    from jax.extend.core import jaxprs_in_params

    for jaxpr in jaxprs_in_params(equation.params):
        yield from all_equations(jaxpr)


def all_equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        yield from _equations_within(equation)


def equations_of(wanted: Sequence[Any], jaxpr: Any, among: Any = None) -> list[Any]:
    """The equations, in their order, of which these variables come."""
    needed = {v for v in wanted if not hasattr(v, "val")}  # a literal has one
    found = []
    for equation in reversed(jaxpr.eqns):
        if needed.isdisjoint(equation.outvars):
            continue
        if among is not None and among.isdisjoint(equation.outvars):
            continue
        if equation.effects or "callback" in equation.primitive.name:
            raise NotCheckedError(NotChecked.EFFECTS)
        if any("callback" in e.primitive.name for e in _equations_within(equation)):
            raise NotCheckedError(NotChecked.EFFECTS)
        found.append(equation)
        needed.update(v for v in equation.invars if not hasattr(v, "val"))
    return found[::-1]


def evaluated(program: Any, values: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """Variables of a closed program, of which no more than that is evaluated."""
    from jax.extend.core import jaxpr_as_fun

    jaxpr = program.jaxpr
    equations = equations_of(wanted, jaxpr)
    part = jaxpr.replace(eqns=equations, outvars=list(wanted), effects=frozenset())
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
