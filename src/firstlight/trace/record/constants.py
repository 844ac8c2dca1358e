"""Which arrays a program took from outside: names, shapes, origins, and the lines that use them.

JAX keeps the very objects that the function used, so a name is found by looking for the object
where the function could have it from: its closure, its globals, the object that it is a method of.
"""

from __future__ import annotations

import sys
from itertools import islice
from types import CodeType, FunctionType, MethodType

from firstlight.trace.record.definitions import closure_of, innermost
from firstlight.trace.record.value_text import dimensions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: Smaller ones are no harm, and are not looked for.
_WORTH_NAMING_BYTES = 100_000
_MAX_NAMED = 8
_MAX_LOOKED_AT = 2000
_MAX_DEPTH = 4
_OF_ARRAYS = ("numpy", "jax", "jaxlib")


def described(constants: dict[int, Any], programs: list[Any], fun: Any) -> list[Any]:
    """[name, origin, dtype, shape, bytes, place] of the largest, the largest first.

    constants: by their identity. programs: those that hold them. origin: closure, global, or None.
    """
    large = [c for c in constants.values() if bytes_of(c) >= _WORTH_NAMING_BYTES]
    large = sorted(large, key=bytes_of, reverse=True)[:_MAX_NAMED]
    if not large:
        return []
    names = _names(fun, large) if fun is not None else {}
    places = _first_uses(programs, {id(c) for c in large})
    return [
        [
            *names.get(id(c), (None, None)),
            str(c.dtype),
            dimensions(c.shape),
            bytes_of(c),
            places.get(id(c)),
        ]
        for c in large
    ]


def bytes_of(value: object) -> int:
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _first_uses(programs: list[Any], wanted: set[int]) -> dict[int, list[Any]]:
    """[file, line] of the first equation with each of the constants."""
    from jax._src import source_info_util

    found: dict[int, list[Any]] = {}
    for program in programs:
        held = zip(program.jaxpr.constvars, program.consts, strict=False)
        variables = {var: id(c) for var, c in held if id(c) in wanted}
        for equation in program.jaxpr.eqns if variables else ():
            invars = (v for v in equation.invars if not hasattr(v, "val"))  # literals have no hash
            used = {variables[v] for v in invars if v in variables} - found.keys()
            frame = source_info_util.user_frame(equation.source_info.traceback) if used else None
            if frame is not None:
                found.update((c, [frame.file_name, frame.start_line]) for c in used)
    return found


def _names(fun: Any, large: list[Any]) -> dict[int, tuple[str, str]]:
    """{constant: (name, origin)}"""
    looked_at = islice(_reachable(fun, set(), _MAX_DEPTH), _MAX_LOOKED_AT)
    arrays = [(name, value, origin) for name, value, origin in looked_at if _is_array(value)]
    found = {}
    for constant in large:
        same = [one for one in arrays if _memory(one[1]) == _memory(constant)]
        # JAX copies what it has to convert, doubles for instance: then the shape has to do.
        alike = {id(one[1]): one for one in arrays if one[1].shape == constant.shape}
        if same or len(alike) == 1:
            name, _, origin = same[0] if same else next(iter(alike.values()))
            found[id(constant)] = (name, origin)
    return found


def _is_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _OF_ARRAYS and hasattr(type(value), "shape")


def _memory(array: Any) -> int:
    """What tells an array from all others; one of NumPy from its views as well."""
    if isinstance(array, sys.modules["numpy"].ndarray):
        return int(array.__array_interface__["data"][0])
    return id(array)


def _reachable(fun: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any, str]]:
    """What a function can use from outside: (name, value, origin), with what those hold."""
    inner = innermost(fun)
    if isinstance(fun, MethodType):
        yield from _within("self", fun.__self__, "closure", seen, depth)
    if not isinstance(inner, FunctionType) or id(inner) in seen or not depth:
        return
    seen.add(id(inner))
    for name, value in closure_of(inner).items():
        yield from _within(name, value, "closure", seen, depth)
    for name in _global_names(inner.__code__):
        if name in inner.__globals__:
            yield from _within(name, inner.__globals__[name], "global", seen, depth)


def _within(
    name: str, value: Any, origin: str, seen: set[int], depth: int
) -> Iterator[tuple[str, Any, str]]:
    """A value by its name, what a container or an object holds, what a function of it uses."""
    yield name, value, origin
    if not depth or id(value) in seen:
        return
    if type(value) in (dict, list, tuple):
        seen.add(id(value))
        items = value.items() if type(value) is dict else enumerate(value)
        for key, part in list(items):
            if type(key) in (str, int):
                yield from _within(f"{name}[{key!r}]", part, origin, seen, depth - 1)
    elif callable(value) and isinstance(innermost(value), FunctionType):
        yield from _reachable(value, seen, depth - 1)
    elif type(value).__module__.partition(".")[0] not in ("builtins", *_OF_ARRAYS):
        seen.add(id(value))
        for key, part in list(_attributes(value).items()):
            yield from _within(f"{name}.{key}", part, origin, seen, depth - 1)
        call = vars(type(value)).get("__call__")
        if isinstance(call, FunctionType):
            yield from _reachable(call, seen, depth - 1)


def _attributes(value: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict else {}


def _global_names(code: CodeType) -> list[str]:
    """Names that the code, and code within it, may look up outside."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _global_names(constant)
    return names
