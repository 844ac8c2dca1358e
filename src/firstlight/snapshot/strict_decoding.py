"""A record from plain JSON that a stranger wrote: every field has the type that the record says.

A reader that takes a text for a number fails somewhere far away. This looks once, at the door, and
does not need jsonschema, which would take seconds for a million warm calls.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from firstlight.snapshot.errors import UnusableSnapshotError

T = TypeVar("T")
_SCALARS: dict[Any, frozenset[type]] = {
    **{kind: frozenset((kind,)) for kind in (str, int, bool, type(None))},
    float: frozenset((float, int)),
}
_MISFIT = object()


def decoded(cls: type[T], plain: Any, where: str) -> T:
    """The record, refused unless `plain` fits it; fields that it does not know are ignored."""
    found: T = _decode(cls, plain, where)
    if found is _MISFIT:
        raise _misfit(plain, where)
    return found


def _misfit(value: Any, where: str) -> UnusableSnapshotError:
    return UnusableSnapshotError(f"{where}: {value!r:.60} is not what belongs there.")


def _decode(hint: Any, value: Any, where: str) -> Any:
    if hint in _SCALARS:
        return value if type(value) in _SCALARS[hint] else _MISFIT
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return _record(hint, value, where) if isinstance(value, dict) else _MISFIT
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        found = (_decode(option, value, where) for option in arguments)
        return next((one for one in found if one is not _MISFIT), _MISFIT)
    if origin is tuple:
        return _items(arguments[0], value, where, tuple) if isinstance(value, list) else _MISFIT
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        inner = _items(arguments[1], value.values(), where, list)
        return inner if inner is _MISFIT else dict(zip(value, inner, strict=True))
    return _MISFIT


def _items(hint: Any, values: Iterable[Any], where: str, made: Callable[[Any], Any]) -> Any:
    if hint in _SCALARS:  # thousands of warm calls: no function call for each
        return made(values) if _SCALARS[hint].issuperset(map(type, values)) else _MISFIT
    found = [_decode(hint, value, where) for value in values]
    return _MISFIT if any(one is _MISFIT for one in found) else made(found)


def _record(cls: Any, value: dict[str, Any], where: str) -> Any:
    found = {}
    for name, (field, hint, needed) in _fields(cls).items():
        if name in value:
            found[field] = _decode(hint, value[name], f"{where}: {name}")
            if found[field] is _MISFIT:
                raise _misfit(value[name], f"{where}: {name}")
        elif needed:
            raise UnusableSnapshotError(f"{where}: {name} is missing.")
    return cls(**found)


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[str, Any, bool]]:
    """{published name: (field, type, whether it must be there)}."""
    hints = typing.get_type_hints(cls)
    nothing = dataclasses.MISSING
    return {
        f.metadata.get("json", f.name): (
            f.name,
            hints[f.name],
            f.default is nothing and f.default_factory is nothing,
        )
        for f in dataclasses.fields(cls)
    }
