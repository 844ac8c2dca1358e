"""Arguments that a program moves between devices in every call, before it uses them.

A program states where it wants an argument with the `in_specs` of `jax.shard_map`, or with
`jax.lax.with_sharding_constraint`. If the argument is placed differently, XLA adds the exchange to
the program, and nothing tells the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from firstlight.trace.record.calls import LOWERING, Frames, variable
from firstlight.trace.record.program_errors import pass_on
from firstlight.trace.record.value_text import dimensions, text_of

#: The frame that holds the shardings of the arguments.
_PLACING = ("pxla.py", "lower_sharding_computation")
_INNER = ("jit", "pjit")
_MAX_DEPTH = 4
_MAX_NAMED = 8
_Moved = list[Any]


def moved_arguments(frames: Frames) -> list[_Moved]:
    """[name, dtype, shape, bytes, sharding as given, as used, line] of the first few."""
    shardings = variable(frames, _PLACING, "in_shardings")
    closed = variable(frames, LOWERING, "closed_jaxpr")
    jaxpr = getattr(closed, "jaxpr", closed)
    if not shardings or jaxpr is None or len(shardings) != len(jaxpr.invars):
        return []
    several = any(len(getattr(s, "device_set", ())) > 1 for s in shardings)
    placed = dict(zip(jaxpr.invars, enumerate(shardings), strict=True)) if several else {}
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None) or ()
    return list(islice(_moved(jaxpr, placed, names, _MAX_DEPTH), _MAX_NAMED))


def _moved(
    jaxpr: Any, placed: dict[Any, tuple[int, Any]], names: Any, depth: int
) -> Iterator[_Moved]:
    """placed: (position, sharding) of the variables that are arguments of the program."""
    for equation in jaxpr.eqns if placed else ():
        # A literal has no hash, and is not an argument.
        given = [None if hasattr(v, "val") else placed.get(v) for v in equation.invars]
        if not any(given):
            continue
        if equation.primitive.name in _INNER and depth:
            inner = getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])
            within = {v: g for v, g in zip(inner.invars, given, strict=True) if g is not None}
            yield from _moved(inner, within, names, depth - 1)
            continue
        wanted = _wanted(equation)
        for variable_, argument, spec in zip(equation.invars, given, wanted, strict=False):
            if argument is not None and _differ(argument[1], spec, len(variable_.aval.shape)):
                number, sharding = argument
                name = names[number] if number < len(names) else f"argument {number}"
                yield _described(str(name), variable_.aval, sharding, spec, equation)


def _wanted(equation: Any) -> list[object]:
    """The partition specs that an equation wants for its operands; None: any."""
    params, kind = equation.params, equation.primitive.name
    if kind == "shard_map":
        return list(params.get("in_specs") or ())
    if kind == "sharding_constraint":
        # Full replication is requested on purpose: it gathers a sharded array.
        sharding = params.get("sharding")
        divided = not getattr(sharding, "is_fully_replicated", True)
        return [getattr(sharding, "spec", None) if divided else None]
    return []


def _differ(sharding: object, spec: object, dimensions_: int) -> bool:
    from jax.sharding import NamedSharding, PartitionSpec

    if not isinstance(sharding, NamedSharding) or not isinstance(spec, PartitionSpec):
        return False
    if any(part is PartitionSpec.UNCONSTRAINED for part in spec):
        return False
    try:
        wanted = NamedSharding(sharding.mesh, spec)
        return not wanted.is_equivalent_to(sharding, dimensions_)
    except Exception as error:  # the spec does not fit this mesh
        pass_on(error)
        return False


def _described(name: str, aval: Any, sharding: Any, spec: Any, equation: Any) -> _Moved:
    from jax._src import source_info_util

    size = int(aval.size) * int(aval.dtype.itemsize)
    frame = source_info_util.user_frame(equation.source_info.traceback)
    place = None if frame is None else [frame.file_name, frame.start_line, frame.function_name]
    texts = text_of(sharding.spec), text_of(spec)
    return [name, str(aval.dtype), list(dimensions(aval.shape)), size, *texts, place]
