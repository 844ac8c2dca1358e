"""What a program depends on that is no array, taken apart: each value by the path of it.

JAX compares static arguments, and the static part of a pytree (fields of a TrainState, of an
equinox.Module, of a module of nnx), as a whole. Told as a whole nobody sees what differs; and a
function, a partial, a bound method is equal to nothing but itself, whatever it was made of.
"""

from __future__ import annotations

import sys
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType

from firstlight.trace.record.installed import package_of
from firstlight.trace.record.log_format import WHOLE
from firstlight.trace.record.value_text import fields_of, is_of_library, own, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_DEEPEST = 5
#: Of one argument; what is left is told as a whole.
_MAX_VALUES = 60


def taken_apart(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(path, value) of all that a value consists of, as far as equal parts make equal values."""
    parts = None if depth > _DEEPEST else _parts(value)
    if not parts:
        yield path, value
        return
    if len(parts) > _MAX_VALUES:
        yield path + WHOLE, value
    for step, part in parts[:_MAX_VALUES]:
        yield from taken_apart(part, path + step, depth + 1)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    kind = type(value)
    if kind in (tuple, list):
        return [(f"[{i}]", one) for i, one in enumerate(value)]
    if kind is dict:
        return [(f"[{text_of(key)}]", one) for key, one in value.items()]
    if identity(value) is not None or is_of_library(value):
        return None
    fields = fields_of(value)
    return None if fields is None else [(f".{name}", one) for name, one in fields]


def identity(value: Any) -> str | None:
    """Of what is equal to nothing but itself: what it is; None: it is compared by its value."""
    if isinstance(value, partial):
        return "partial"
    if isinstance(value, MethodType):
        return "method"
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return "function"
    if own(value, "__wrapped__") is not None or type(value).__name__ == "PjitFunction":
        return "function"
    if isinstance(value, type) or is_of_library(value):
        return None
    compared = any("__eq__" in vars(c) for c in type(value).__mro__[:-1])
    if compared:
        return None
    module = sys.modules.get(type(value).__module__)
    installed = package_of(getattr(module, "__file__", None) or "")
    return "object of a package" if installed else "object"
