"""Values and structures as text, without running code of the program: no repr of its classes.

What a class of the program prints of itself may have effects, take long, or wait for an array. So
only what Python and JAX bring along writes itself. Of any other object there is its class: with
what it holds, if objects of it can be equal; with its address, if each is another one.
"""

from __future__ import annotations

import zlib
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType

from firstlight.trace.program_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

MOST_TEXT = 200
_SIMPLE = (int, float, complex, bool, str, bytes, type(None), type(...), range, slice)
_FUNCTIONS = (FunctionType, BuiltinFunctionType)
#: Packages whose classes may write themselves.
_LIBRARIES = ("jax", "jaxlib", "numpy", "ml_dtypes")
_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}")}
_DEEPEST = 6


def shortened(text: str) -> str:
    """Of a long text its begin, and a number that is another one for another text."""
    whole = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}… {whole:08x}"


def own(value: Any, name: str) -> Any:
    """An attribute that is in the object itself: no code of its class is asked."""
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except Exception as error:
        pass_on(error)
        return None


def has(value: Any, name: str) -> bool:
    """Whether an attribute is there, again without asking the class for one that is not."""
    return any(name in vars(c) for c in type(value).__mro__) or own(value, name) is not None


def text_of(value: Any) -> str:
    """A value, at most so long that a line can hold it."""
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
    if depth > _DEEPEST:
        return f"<{kind.__qualname__}>"
    if kind.__name__ == "PyTreeDef":
        return f"PyTreeDef({_structure(value, depth)})"
    return _composed(value, lambda part: _text(part, depth + 1)) or _of_object(value)


def _composed(value: Any, text: Callable[[Any], str]) -> str | None:
    """What consists of other values; None: it does not."""
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
        return f"partial({', '.join([text(value.func), *bound])})"
    if kind is MethodType:
        return f"<method {value.__func__.__qualname__} of {_of_object(value.__self__)}>"
    if isinstance(value, Enum):
        return f"{kind.__qualname__}.{own(value, '_name_')}"
    if isinstance(value, tuple) and "_fields" in vars(kind):
        parts = list(zip(vars(kind)["_fields"], tuple.__iter__(value), strict=False))
    elif _is_of_library(value) or all("__eq__" not in vars(c) for c in kind.__mro__[:-1]):
        return None
    else:  # another object can be equal to it, and then has the same values
        parts = _attributes(value)
    return f"{kind.__qualname__}({', '.join(f'{name}={text(v)}' for name, v in parts)})"


def _attributes(value: Any) -> list[tuple[str, Any]]:
    fields = vars(type(value)).get("__dataclass_fields__")
    if fields is not None:
        return [(name, object.__getattribute__(value, name)) for name in fields]
    slots = (vars(c).get("__slots__", ()) for c in type(value).__mro__)
    names = [n for several in slots for n in ((several,) if type(several) is str else several)]
    held = [(n, object.__getattribute__(value, n)) for n in names if hasattr(type(value), n)]
    try:
        return held + list(object.__getattribute__(value, "__dict__").items())
    except AttributeError:
        return held


def _is_of_library(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in _LIBRARIES


def _of_object(value: Any) -> str:
    kind = type(value)
    if _is_of_library(value):
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            # The text of an array is its values: to get them would wait for them.
            return f"{value.dtype}{list(value.shape)}"
        wrapped = own(value, "__wrapped__")  # of jit: its text would be asked for
        return repr(value) if wrapped is None else f"<{kind.__name__} of {_text(wrapped, 1)}>"
    return f"<{kind.__qualname__} at 0x{id(value):x}>"


# --- structures of arguments ----------------------------------------------------------------------


def structure_text(tree: Any) -> str:
    """A structure as JAX writes it, but for what objects in it would print of themselves."""
    return f"PyTreeDef({_structure(tree, 0)})"


def _structure(tree: Any, depth: int) -> str:
    node = tree.node_data()
    if node is None:
        return "*"
    kind, about = node
    if kind is type(None):
        return "None"
    parts = [_structure(child, depth) for child in tree.children()]
    if kind is dict:
        keys = [_text(key, depth + 1) for key in about]
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(keys, parts, strict=False)) + "}"
    if kind is tuple:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if kind is list:
        return f"[{', '.join(parts)}]"
    if issubclass(kind, tuple) and "_fields" in vars(kind):
        return f"CustomNode(namedtuple[{kind.__name__}], [{', '.join(parts)}])"
    return f"CustomNode({kind.__name__}[{_text(about, depth + 1)}], [{', '.join(parts)}])"


def leaf_paths(tree: Any, path: str = "") -> Iterator[str]:
    """The path of every leaf, in the order of the leaves, as one writes it in Python."""
    node = tree.node_data()
    if node is None:
        yield path
        return
    children = tree.children()
    for step, child in zip(_steps(node[0], node[1], len(children)), children, strict=True):
        yield from leaf_paths(child, path + step)


def _steps(kind: type, about: Any, n: int) -> list[str]:
    """How the children of a node are reached."""
    if kind in (tuple, list):
        return [f"[{i}]" for i in range(n)]
    if kind is dict:
        return [f"[{_text(key, 1)}]" for key in about]
    keys = about[1] if type(about) is tuple and len(about) == 2 else about  # defaultdict
    for several in (about, keys):
        # Mappings keep their keys beside their values, whatever class they are of.
        if type(several) in (tuple, list) and len(several) == n and _are_names(several):
            return [f"[{key!r}]" for key in several]
    names = vars(kind).get("_fields") or _field_names(kind)
    if len(names) == n:
        return [f".{name}" for name in names]
    return [f"[<flat index {i}>]" for i in range(n)]


def _are_names(several: Any) -> bool:
    return all(type(key) is str for key in several)


def _field_names(kind: type) -> list[str]:
    """Of a dataclass: fields that hold arrays, by what packages write beside those that do not."""
    fields = vars(kind).get("__dataclass_fields__", {}).values()
    told = [(field.name, field.metadata) for field in fields]
    return [n for n, m in told if not m.get("static") and m.get("pytree_node", True)]
