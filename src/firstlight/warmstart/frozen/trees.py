"""Flattens nested arguments and results as JAX does, without JAX and without pickle.

A tree's shape consists of tuples, strings and None, so it is hashable and can be written as JSON:
LEAF, None, ("tuple", …), ("list", …), ("dict", (key, shape), …), ("named", "module:name", …).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

LEAF = "*"
Shape = Any  # recursive
_KEYS = (str, int, bool)


def flatten(value: object) -> tuple[list[Any], Shape]:
    """(leaves in JAX's order, shape). Everything but a tuple, list, dict or None is a leaf."""
    leaves: list[Any] = []
    return leaves, _shape(value, leaves)


def _shape(value: Any, leaves: list[Any]) -> Shape:
    kind = type(value)
    if value is None:
        return None
    if kind is tuple or kind is list:
        return (kind.__name__, *[_shape(item, leaves) for item in value])
    if kind is dict and all(type(key) in _KEYS for key in value):
        return ("dict", *[(key, _shape(value[key], leaves)) for key in sorted(value)])
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        name = f"{kind.__module__}:{kind.__qualname__}"
        return ("named", name, *[_shape(item, leaves) for item in value])
    leaves.append(value)
    return LEAF


def unflatten(shape: Shape, leaves: Iterator[Any]) -> Any:
    """The tree of this shape, with these leaves."""
    if shape is None:
        return None
    if shape == LEAF:
        return next(leaves)
    kind, *parts = shape
    if kind == "dict":
        return {key: unflatten(part, leaves) for key, part in parts}
    if kind == "named":
        name, *parts = parts
        return _class(name)(*[unflatten(part, leaves) for part in parts])
    items = [unflatten(part, leaves) for part in parts]
    return tuple(items) if kind == "tuple" else items


def leaf_names(shape: Shape, name: str) -> list[str]:
    """The path of every leaf in the tree called `name`, such as `name.key.0`."""
    if shape is None:
        return []
    if shape == LEAF:
        return [name]
    kind, *parts = shape
    if kind == "dict":
        named = parts
    elif kind == "named":
        named = zip(_class(parts[0])._fields, parts[1:], strict=True)
    else:
        named = enumerate(parts)
    prefix = f"{name}." if name else ""
    return [leaf for key, part in named for leaf in leaf_names(part, f"{prefix}{key}")]


def without_classes(shape: Shape) -> Shape:
    """The shape with plain tuples for named ones, to be shown."""
    if not isinstance(shape, tuple):
        return shape
    if shape[0] == "named":
        return ("tuple", *map(without_classes, shape[2:]))
    if shape[0] == "dict":
        return ("dict", *[(key, without_classes(part)) for key, part in shape[1:]])
    return (shape[0], *map(without_classes, shape[1:]))


def from_json(plain: object) -> Shape:
    """The shape that was written as JSON."""
    return tuple(from_json(part) for part in plain) if isinstance(plain, list) else plain


def _class(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module) or import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
