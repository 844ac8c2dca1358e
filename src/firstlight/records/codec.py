"""Frozen dataclasses to plain JSON values and back, and the errors of records.

Readers ignore unknown fields. What was not measured is null, never 0 or NaN. Types are checked
here, once: a string in place of a number would otherwise fail much later.

FirstlightError
├── RecordError               a record cannot be read or written
│   ├── NewerSchemaError      the file was written by a newer Firstlight
│   └── MalformedRecordError  the file is damaged, or of another kind
└── OutputError               a file or directory cannot be written
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from firstlight.errors import FirstlightError

T = TypeVar("T")
_SCALARS: dict[object, frozenset[type]] = {
    **{kind: frozenset((kind,)) for kind in (str, int, bool, type(None))},
    float: frozenset((float, int)),
}
_MISFIT = object()


class RecordError(FirstlightError): ...


class NewerSchemaError(RecordError): ...


class MalformedRecordError(RecordError): ...


class OutputError(FirstlightError): ...


def to_json(value: object) -> Any:
    """Convert dataclasses to plain dicts and lists, with each field under its published name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.metadata.get("json", f.name): to_json(getattr(value, f.name))
            for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value.value if isinstance(value, enum.Enum) else value


def from_json(cls: type[T], data: object, where: str = "") -> T:
    """Build the dataclass `cls` from JSON data and check its types; errors begin with `where`."""
    found: T = _decode(cls, data, where or cls.__name__)
    if found is _MISFIT:
        raise _misfit(data, where or cls.__name__)
    return found


def _misfit(value: object, where: str) -> MalformedRecordError:
    return MalformedRecordError(f"{where}: {value!r:.60} is not a valid value.")


def _decode(hint: object, value: object, where: str) -> Any:
    if hint in _SCALARS:
        return value if type(value) in _SCALARS[hint] else _MISFIT
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return _record(hint, value, where) if isinstance(value, dict) else _MISFIT
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next((member for member in hint if member.value == value), _MISFIT)
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


def _record(cls: Any, value: dict[str, object], where: str) -> object:
    found = {}
    for name, (field, hint, needed) in _fields(cls).items():
        if name in value:
            found[field] = _decode(hint, value[name], f"{where}: {name}")
            if found[field] is _MISFIT:
                raise _misfit(value[name], f"{where}: {name}")
        elif needed:
            raise MalformedRecordError(f"{where}: {name} is missing.")
    return cls(**found)


@cache
def _fields(cls: Any) -> dict[str, tuple[str, Any, bool]]:
    """{published name: (field, type, required)}; cached, as this takes longer than decoding."""
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
