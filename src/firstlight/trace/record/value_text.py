"""Values and structures as text, without running code of the program: no repr of its classes.

A repr of the program may have effects, take long, or wait for an array. Only types of Python, JAX
and NumPy use theirs. Other objects are shown as their class: with their fields if objects of the
class can be equal, otherwise with their address.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType
from typing import Any

from firstlight.trace.record.program_errors import pass_on

MAX_TEXT = 200
_SIMPLE = (int, float, complex, bool, str, bytes, type(None), type(...), range, slice)
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
#: Packages whose classes may use their own repr.
_LIBRARIES = ("jax", "jaxlib", "numpy", "ml_dtypes")
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}")}
_MAX_DEPTH = 6


def shortened(text: str) -> str:
    """A long text as its start and a checksum of the whole."""
    whole = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… {whole:08x}"


def dimensions(shape: Iterable[object]) -> list[int | str]:
    """A shape for the log: symbolic sizes as text."""
    return [n if isinstance(n, int) else str(n) for n in shape]


def attributes_of(value: object) -> Mapping[str, Any]:
    """The attributes stored in the object, without running code of its class."""
    try:
        held = object.__getattribute__(value, "__dict__")
    except Exception as error:
        pass_on(error)
        return {}
    return held if isinstance(held, (dict, MappingProxyType)) else {}


def own(value: object, name: str) -> Any:
    return attributes_of(value).get(name)


def has(value: object, name: str) -> bool:
    """Whether an attribute exists, without running `__getattr__` of the class."""
    return any(name in vars(c) for c in type(value).__mro__) or own(value, name) is not None


def text_of(value: object) -> str:
    """A value as text that fits a line."""
    try:
        return shortened(_text(value, 0))
    except Exception as error:
        pass_on(error)
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _text(value: Any, depth: int) -> str:
    kind = type(value)
    if kind in _SIMPLE or kind in _FUNCTIONS:
        return repr(value)
    if isinstance(value, type):
        return f"<class '{value.__qualname__}'>"
    if depth > _MAX_DEPTH:
        return f"<{kind.__qualname__}>"
    if kind.__name__ == "PyTreeDef":
        return f"PyTreeDef({_structure(value, depth)})"
    return _composed(value, lambda part: _text(part, depth + 1)) or _of_object(value)


def _composed(value: Any, text: Callable[[Any], str]) -> str | None:
    """The text of a value made of other values; None if it is not."""
    kind = type(value)
    if kind in _BRACKETS:
        opening, closing = _BRACKETS[kind]
        comma = "," if kind is tuple and len(value) == 1 else ""
        return f"{opening}{', '.join(map(text, value))}{comma}{closing}"
    if kind is frozenset:
        return f"frozenset({{{', '.join(sorted(map(text, value)))}}})"
    if kind is dict:
        return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, partial):
        bound = [*map(text, value.args), *(f"{k}={text(v)}" for k, v in value.keywords.items())]
        return f"<partial({', '.join([text(value.func), *bound])}) at 0x{id(value):x}>"
    if kind is MethodType:
        return f"<method {value.__func__.__qualname__} of {_of_object(value.__self__)}>"
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{own(value, '_name_')}"
    if is_of_library(value) and not isinstance(value, tuple):
        return None
    parts = fields_of(value)
    if parts is None:
        return None
    return f"{kind.__qualname__}({', '.join(f'{name}={text(v)}' for name, v in parts)})"


def fields_of(value: object) -> list[tuple[str, Any]] | None:
    """The values that decide equality with another object; None if only identity does."""
    kind = type(value)
    # Also for subclasses of a named tuple, such as optax.GradientTransformationExtraArgs.
    names = next((vars(c)["_fields"] for c in kind.__mro__ if "_fields" in vars(c)), None)
    if isinstance(value, tuple) and names is not None:
        return list(zip(names, tuple.__iter__(value), strict=False))
    if all("__eq__" not in vars(c) for c in kind.__mro__[:-1]):
        return None
    fields = vars(kind).get("__dataclass_fields__")
    if fields is not None:
        return [(name, object.__getattribute__(value, name)) for name in fields]
    slots = (vars(c).get("__slots__", ()) for c in kind.__mro__)
    names = [n for several in slots for n in ((several,) if type(several) is str else several)]
    held = [(n, object.__getattribute__(value, n)) for n in names if hasattr(kind, n)]
    return [*held, *attributes_of(value).items()]


def is_of_library(value: object) -> bool:
    """Whether the class belongs to JAX or NumPy, whose reprs are safe to use."""
    return type(value).__module__.partition(".")[0] in _LIBRARIES


def _of_object(value: object) -> str:
    kind = type(value)
    if is_of_library(value):
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            # The repr of an array has its values, and would wait for them.
            return f"{value.dtype}{list(value.shape)}"
        wrapped = own(value, "__wrapped__")  # of jit: repr would call the function's own
        return repr(value) if wrapped is None else f"<{kind.__name__} of {_text(wrapped, 1)}>"
    return f"<{kind.__qualname__} at 0x{id(value):x}>"


# --- structures of arguments ----------------------------------------------------------------------


def tree_text(trees: Iterable[tuple[str, object]]) -> str:
    """Structures by name as JAX writes them, without the static data of nodes."""
    inside = (f"{name!r}: {_structure(tree, 0, False)}" for name, tree in trees)
    return shortened(f"PyTreeDef({{{', '.join(inside)}}})")


def _structure(tree: Any, depth: int, whole: bool = True) -> str:
    node = tree.node_data()
    if node is None:
        return "*"
    kind, about = node
    if kind is type(None):
        return "None"
    parts = [_structure(child, depth, whole) for child in tree.children()]
    if kind is dict:
        keys = (_text(key, depth + 1) for key in about)
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(keys, parts, strict=False)) + "}"
    inside = ", ".join(parts)
    if kind is tuple:
        return f"({inside}{',' if len(parts) == 1 else ''})"
    if kind is list:
        return f"[{inside}]"
    if issubclass(kind, tuple) and "_fields" in vars(kind):
        return f"CustomNode(namedtuple[{kind.__name__}], [{inside}])"
    whole |= kind.__module__ == "collections"  # its keys
    beside = f"[{_text(about, depth + 1)}]" if whole else ""
    return f"CustomNode({kind.__name__}{beside}, [{inside}])"
