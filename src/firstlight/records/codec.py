"""Frozen dataclasses to plain JSON values and back.

Readers ignore fields that they do not know; what was not measured is null, never 0 or NaN.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from firstlight.records.errors import MalformedRecordError

T = TypeVar("T")
_SCALARS = (str, int, float, bool)


def to_json(value: Any) -> Any:
    """Plain dicts and lists for `json`, with each field under its published name."""
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


def from_json(cls: type[T], data: Any) -> T:
    """An instance of the dataclass `cls`; unknown fields are ignored, missing ones are named."""
    if not isinstance(data, dict):
        raise MalformedRecordError(f"expected an object for {cls.__name__}, found {data!r:.60}")
    hints = _hints(typing.cast("Any", cls))
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = f.metadata.get("json", f.name)
        if name in data:
            values[f.name] = _decode(hints[f.name], data[name])
    try:
        return cls(**values)
    except TypeError as error:
        raise MalformedRecordError(f"{cls.__name__}: {error}") from None


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """Types of the fields; finding them out takes longer than reading a record."""
    return typing.get_type_hints(cls)


def _decode(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (types.UnionType, typing.Union):
        return _decode(next(a for a in arguments if a is not type(None)), value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError as error:
            raise MalformedRecordError(str(error)) from None
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast("type[Any]", hint), value)
    if origin is tuple:
        if not isinstance(value, list):
            raise MalformedRecordError(f"expected a list, found {value!r:.60}")
        if arguments[0] in _SCALARS:  # thousands of warm calls: no function call for each
            return tuple(value)
        return tuple(_decode(arguments[0], v) for v in value)
    return value
