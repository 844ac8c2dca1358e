"""Whether plain JSON fits a record: every field that is there has the type that the record says.

A reader that takes a text for a number fails somewhere far away. This looks once, at the door, and
does not need jsonschema, which would take seconds for a million warm calls.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from firstlight.snapshot.errors import UnusableSnapshotError

_SCALARS: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    bool: (bool,),
    float: (float, int),
    type(None): (type(None),),
}


def require_type(hint: Any, value: Any, where: str) -> None:
    """Refuse `value` unless it fits `hint`, a record's class or the type of one of its fields."""
    if not _fits(hint, value, where):
        raise UnusableSnapshotError(f"{where}: {value!r:.60} is not what belongs there.")


def _fits(hint: Any, value: Any, where: str) -> bool:
    if hint in _SCALARS:
        return type(value) in _SCALARS[hint]
    if hint is Any:
        return True
    if dataclasses.is_dataclass(hint):
        return isinstance(value, dict) and _fields_fit(hint, value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(option, value, where) for option in arguments)
    if origin is tuple:
        return isinstance(value, list) and _items_fit(arguments[0], value, where)
    if origin is not None and issubclass(origin, Mapping):
        inner = list(value.values()) if isinstance(value, dict) else None
        return inner is not None and _items_fit(arguments[1], inner, where)
    return False


def _items_fit(hint: Any, values: list[Any], where: str) -> bool:
    if hint in _SCALARS:  # thousands of warm calls: no function call for each
        allowed = _SCALARS[hint]
        return all(type(value) in allowed for value in values)
    return all(_fits(hint, value, where) for value in values)


def _fields_fit(cls: Any, value: dict[str, Any], where: str) -> bool:
    for name, (hint, needed) in _fields(cls).items():
        if name in value:
            require_type(hint, value[name], f"{where}: {name}")
        elif needed:
            raise UnusableSnapshotError(f"{where}: {name} is missing.")
    return True


@functools.cache
def _fields(cls: Any) -> dict[str, tuple[Any, bool]]:
    """{published name: (type, whether it must be there)}."""
    hints = typing.get_type_hints(cls)
    nothing = dataclasses.MISSING
    return {
        f.metadata.get("json", f.name): (
            hints[f.name],
            f.default is nothing and f.default_factory is nothing,
        )
        for f in dataclasses.fields(cls)
    }
