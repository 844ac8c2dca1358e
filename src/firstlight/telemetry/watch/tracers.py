"""What JAX hands to a function while it makes a program of it: tracers, and where they belong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

from firstlight.telemetry.watch.differentiated import Place

#: Functions, arguments and their attributes that are looked through for tracers.
_MAX_THINGS = 10_000
#: Of an equation, after what goes in.
_PARTS = ("outvars", "primitive", "params", "effects", "source_info", "ctx")


def tracing_test() -> Callable[[], bool]:
    """What tells whether JAX is making a program of what is called now, at once."""
    context, kind = _context()
    return (lambda: False) if context is None else lambda: type(context.trace) is kind


def program_finder() -> Callable[[], Any]:
    """What finds the program that JAX is making, also below a `vmap` or another gradient."""
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
    """What JAX is doing, and the kind of it that makes a program; None, if it cannot be asked."""
    from jax._src import core
    from jax._src.interpreters import partial_eval

    context = getattr(core, "trace_ctx", None)
    kind = getattr(partial_eval, "DynamicJaxprTrace", None)
    return (context, kind) if kind is not None and hasattr(context, "trace") else (None, None)


def place_of(leaf: Any, program: Any) -> Place | None:
    """Where a value of a program that is being made is; None, if it is not of that program."""
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
        leaf = program.frame.constid_to_tracer.get(id(leaf))  # from around it
    variable = getattr(leaf, "val", None)
    return None if variable is None or hasattr(variable, "val") else Place(variable, axis)


def equations_since(begin: int, program: Any) -> list[Any]:
    """Of a program that is being made."""
    from jax.extend.core import JaxprEqn

    traced = (e() if callable(e) else e for e in program.frame.tracing_eqns[begin:])
    return [
        JaxprEqn([x.val for x in e.in_tracers], *(getattr(e, name) for name in _PARTS))
        for e in traced
        if e is not None
    ]


def passes_on(given: Any, result: Any) -> bool:
    """Whether all of a result is what was given, in a program that is being made."""
    import jax

    leaves = jax.tree_util.tree_leaves
    there = {id(_primal(leaf)) for leaf in leaves(given) if isinstance(leaf, jax.core.Tracer)}
    return bool(there) and all(id(_primal(leaf)) in there for leaf in leaves(result))


def _primal(leaf: Any) -> Any:
    while hasattr(leaf, "primal"):
        leaf = leaf.primal
    return leaf


def tracers_in(things: Any) -> set[int]:
    """The tracers, by their `id`, that functions and arguments hold.

    What a function has from around it and what it is given as a variable may be one and the same
    variable of a program: there they cannot be told apart.
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
    except Exception:  # a dictionary whose keys have no order
        return list(tree.values()) if isinstance(tree, dict) else []
    return leaves


def _held_by(one: Any) -> list[Any]:
    """What a function has from around it, or an object as its attributes."""
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
