"""Tracers, which JAX passes to a function while tracing it, and their variables in the program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from firstlight.telemetry.watch.differentiated import ProgramValue

#: Limit of functions, arguments and attributes searched for tracers.
_MAX_THINGS = 10_000
#: Attributes of an equation after its inputs.
_PARTS = ("outvars", "primitive", "params", "effects", "source_info", "ctx")


def tracing_test() -> Callable[[], bool]:
    """A function that returns whether JAX is tracing the current call directly."""
    context, kind = _context()
    return (lambda: False) if context is None else lambda: type(context.trace) is kind


def program_finder() -> Callable[[], Any]:
    """A function that returns the program being traced, also below a `vmap` or another gradient."""
    context, kind = _context()
    if context is None:
        return lambda: None

    def program_being_made() -> Any:
        trace = context.trace
        while trace is not None and type(trace) is not kind:
            trace = getattr(trace, "parent_trace", None)
        return trace

    return program_being_made


def _context() -> tuple[Any, Any]:
    """JAX's trace context and its type of a trace that makes a program; None if JAX has changed."""
    from jax._src import core
    from jax._src.interpreters import partial_eval

    context = getattr(core, "trace_ctx", None)
    kind = getattr(partial_eval, "DynamicJaxprTrace", None)
    return (context, kind) if kind is not None and hasattr(context, "trace") else (None, None)


def place_of(leaf: Any, program: Any) -> ProgramValue | None:
    """The variable of a value in the program being traced; None if it is not part of it."""
    axis = None
    while not hasattr(getattr(leaf, "_trace", None), "frame"):
        if hasattr(leaf, "batch_dim"):
            if axis is not None and leaf.batch_dim is not None:
                return None  # a vmap within another one
            leaf, axis = leaf.val, leaf.batch_dim if axis is None else axis
        elif hasattr(leaf, "primal"):
            leaf = leaf.primal
        else:
            return None
    if leaf._trace is not program:
        leaf = program.frame.constid_to_tracer.get(id(leaf))  # of an enclosing program
    variable = getattr(leaf, "val", None)
    return None if variable is None or hasattr(variable, "val") else ProgramValue(variable, axis)


def equations_since(begin: int, program: Any) -> list[Any]:
    """The equations that the program being traced has gained since `begin`."""
    from jax.extend.core import JaxprEqn

    traced = (e() if callable(e) else e for e in program.frame.tracing_eqns[begin:])
    return [
        JaxprEqn([x.val for x in e.in_tracers], *(getattr(e, name) for name in _PARTS))
        for e in traced
        if e is not None
    ]


def passes_on(given: Any, result: Any) -> bool:
    """Whether all of a result is among the given tracers."""
    import jax

    leaves = jax.tree_util.tree_leaves
    there = {id(_primal(leaf)) for leaf in leaves(given) if isinstance(leaf, jax.core.Tracer)}
    return bool(there) and all(id(_primal(leaf)) in there for leaf in leaves(result))


def _primal(leaf: Any) -> Any:
    while hasattr(leaf, "primal"):
        leaf = leaf.primal
    return leaf


def tracers_in(things: Any) -> set[int]:
    """The `id` of each tracer that functions and arguments hold.

    If a function closes over the same tracer that it is differentiated with respect to, the
    program has one variable for both, and they cannot be told apart.
    """
    import jax

    found: set[int] = set()
    seen: set[int] = set()
    left = [things]
    while left and len(seen) < _MAX_THINGS:
        for one in _leaves(left.pop()):
            if isinstance(one, jax.core.Tracer):
                found.add(id(one))
            elif id(one) not in seen:
                seen.add(id(one))
                left += _held_by(one)
    return found


def _leaves(tree: Any) -> list[Any]:
    import jax

    try:
        leaves: list[Any] = jax.tree_util.tree_leaves(tree)
    except Exception:  # a dict whose keys cannot be sorted
        return list(tree.values()) if isinstance(tree, dict) else []
    return leaves


def _held_by(one: Any) -> list[Any]:
    """The closure and defaults of a function, or the attributes of an object."""
    if isinstance(one, (type, ModuleType)):
        return []
    if isinstance(one, partial):
        return [one.func, one.args, one.keywords]
    if isinstance(one, MethodType):
        return [one.__func__, one.__self__]
    held = [getattr(one, "__dict__", None), getattr(one, "__wrapped__", None)]
    if isinstance(one, FunctionType):
        held += [one.__defaults__, one.__kwdefaults__, *map(_contents, one.__closure__ or ())]
    return held


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def is_real(leaf: Any) -> bool:
    import jax

    return bool(jax.numpy.issubdtype(jax.numpy.result_type(leaf), jax.numpy.floating))


def is_being_traced(tree: Any) -> bool:
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(tree))
