"""The parts of arguments: paths of their arrays, and each static value by its path.

JAX compares static arguments, and the static part of a pytree (fields of a TrainState, of an
equinox.Module, of a module of nnx), as a whole. As a whole, a reader could not see what differs;
and a function, a partial or a bound method is equal only to itself, whatever it was made of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from firstlight.trace.record.calls import Facts
from firstlight.trace.record.definitions import is_of_equinox
from firstlight.trace.record.log_format import WHOLE, package_of
from firstlight.trace.record.value_text import fields_of, is_of_library, own, text_of

Named = tuple[str, Any]

_MAX_NESTING = 5
_MAX_DEPTH_OF_MODULES = 50
_MAX_VALUES = 60  # of one argument; the rest is shown as a whole


# --- static values --------------------------------------------------------------------------------


def taken_apart(value: object, path: str, depth: int = 0) -> Iterator[Named]:
    """(path, value) of the parts of a value, as far as equal parts make equal values."""
    parts = None if depth > _MAX_NESTING else _parts(value)
    if not parts:
        yield path, value
        return
    if len(parts) > _MAX_VALUES:
        yield path + WHOLE, value
    for step, part in parts[:_MAX_VALUES]:
        yield from taken_apart(part, path + step, depth + 1)


def _parts(value: Any) -> list[Named] | None:
    kind = type(value)
    if kind in (tuple, list):
        return [(f"[{i}]", one) for i, one in enumerate(value)]
    if kind is dict:
        return [(f"[{text_of(key)}]", one) for key, one in value.items()]
    if identity(value) is not None or is_of_library(value):
        return None
    fields = fields_of(value)
    return None if fields is None else [(f".{name}", one) for name, one in fields]


def identity(value: object) -> str | None:
    """The kind of a value that is equal only to itself; None if it is compared by value."""
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
    if any("__eq__" in vars(c) for c in type(value).__mro__[:-1]):
        return None
    module = sys.modules.get(type(value).__module__)
    installed = package_of(getattr(module, "__file__", None) or "")
    return "object of a package" if installed else "object"


# --- pytrees --------------------------------------------------------------------------------------


def leaf_paths(tree: Any, path: str = "") -> Iterator[str]:
    """The path of every leaf in order, as a Python expression."""
    node = tree.node_data()
    if node is None:
        yield path
        return
    children, graph = tree.children(), _graph_of(tree)
    if graph is not None:
        named = _Graph(graph, path).arrays
        if len(named) == tree.num_leaves:
            yield from named
            return
    for step, child in zip(_steps(node[0], node[1], len(children)), children, strict=True):
        yield from leaf_paths(child, path + step)


def in_structure(tree: Any, path: str) -> Iterator[Named]:
    """The static part of a pytree."""
    node, graph = tree.node_data(), _graph_of(tree)
    if node is None:
        return
    if graph is not None:
        yield from _Graph(graph, path).statics
        return
    (kind, about), children = node, tree.children()
    steps = _steps(kind, about, len(children))
    # The keys of a mapping are in the paths.
    if kind is not dict and about is not None and not any(s.startswith("['") for s in steps):
        yield from _beside(kind, about, path)
    for step, child in zip(steps, children, strict=True):
        yield from in_structure(child, path + step)


def _steps(kind: type, about: Any, n: int) -> list[str]:
    """The step from a node to each child: `[0]`, `['key']`, `.field`."""
    if kind in (tuple, list):
        return [f"[{i}]" for i in range(n)]
    if kind is dict:
        return [f"[{text_of(key)}]" for key in about]
    keys = about[1] if type(about) is tuple and len(about) == 2 else about  # defaultdict
    for several in (about, keys):
        # Mappings of any class keep their keys beside the values.
        if type(several) in (tuple, list) and len(several) == n and _are_names(several):
            return [f"[{key!r}]" for key in several]
    names = vars(kind).get("_fields") or _field_names(kind)[0]
    return (
        [f".{s}" for s in names] if len(names) == n else [f"[<flat index {i}>]" for i in range(n)]
    )


def _are_names(several: Iterable[object]) -> bool:
    return all(type(key) is str for key in several)


def _field_names(kind: type) -> tuple[list[str], list[str]]:
    """(children, static) fields of a dataclass: as registered with JAX, or from the metadata that
    packages put on fields."""
    from jax._src import tree_util

    entry = getattr(tree_util, "_registry", {}).get(kind)
    flatten = getattr(entry, "to_iter", None)
    if isinstance(flatten, FunctionType):
        held = zip(flatten.__code__.co_freevars, flatten.__closure__ or (), strict=False)
        registered = {name: cell.cell_contents for name, cell in held}
        if {"data_fields", "meta_fields"} <= {*registered}:
            return list(registered["data_fields"]), list(registered["meta_fields"])
    fields = vars(kind).get("__dataclass_fields__", {}).values()
    static = [f for f in fields if f.metadata.get("static") or not f.metadata.get("pytree_node", 1)]
    return [f.name for f in fields if f not in static], [f.name for f in static]


def _beside(kind: type, about: Any, path: str) -> Iterator[Named]:
    """The static values that a node keeps beside its children."""
    values = list(about) if type(about) is tuple else [about]
    if _names_its_values(values):  # a module of nnx: names of nodes, names of values, values
        for name, value in zip(values[1], values[2], strict=True):
            if not name.startswith("_"):
                yield from taken_apart(value, f"{path}.{name}")
        return
    _, names = _field_names(kind)
    unnamed = len(values) - len(names)
    for i, value in enumerate(values):
        step = f".{names[i - unnamed]}" if 0 <= unnamed <= i else f".<static {i}>"
        yield from taken_apart(value, path + step)


def _names_its_values(values: list[Any]) -> bool:
    if len(values) != 3 or not all(type(one) is tuple for one in values):
        return False
    return len(values[1]) == len(values[2]) and _are_names(values[1])


# --- modules of nnx -------------------------------------------------------------------------------


def _graph_of(tree: Any) -> object:
    """The GraphDef that nnx.jit makes of a module, with the arrays in a list beside it."""
    node = tree.node_data()
    if node is None or node[0].__name__ != "NodeStates":
        return None
    first = tree.children()[0].node_data()
    held = None if first is None else first[1]
    return held if type(held).__name__ == "GraphDef" else None


class _Graph:
    """The paths of a module's arrays, in the order of the arrays, and its static values."""

    def __init__(self, graph: Any, path: str) -> None:
        self.arrays: list[str] = []
        self.statics: list[Named] = []
        try:
            self._walk(iter(graph.nodes), iter(graph.attributes), path, 0)
        except (StopIteration, AttributeError, TypeError, ValueError):  # another nnx
            self.arrays = []
        self.statics.append((path + WHOLE, graph))

    def _walk(self, nodes: Iterator[Any], attributes: Iterator[Any], path: str, depth: int) -> None:
        node = next(nodes)
        if type(node).__name__ == "VariableDef":
            self.arrays.append(path)
        if type(node).__name__ != "NodeDef" or depth > _MAX_DEPTH_OF_MODULES:
            return
        for _ in range(node.num_attributes):
            name, attribute = next(attributes)
            step = f".{name}" if type(name) is str else f"[{name!r}]"
            if type(attribute).__name__ == "NodeAttr":
                self._walk(nodes, attributes, path + step, depth + 1)
            elif type(attribute).__name__ != "Static":
                self.arrays.append(path + step)
            elif type(name) is not str or not name.startswith("_"):
                self.statics += taken_apart(attribute.value, path + step)


# --- calls under equinox.filter_jit ---------------------------------------------------------------

#: Parameters of equinox's function: those with the arrays of a call, and the static one.
_ARRAYS = ("dynamic_donate", "dynamic_nodonate")
_STATIC = "static"


class FilteredCall:
    """The arguments of a call by the user's names: structures, paths of arrays, static values.
    Equinox passes all arrays in flat tuples, and everything else, structures included, as one
    static argument. This puts them together again."""

    def __init__(self, static: Any, parameters: Sequence[str]) -> None:
        fun, first, (rest_values, rest_tree) = static
        by_position, by_name = rest_tree.children()
        # Equinox adds a None to the positional arguments, so that there always is a first one.
        trees = [first[1], *by_position.children()][:-1]
        unnamed = (f"[{i}]" for i in range(len(parameters), len(trees)))
        named = list(zip([*parameters, *unnamed], trees, strict=False))
        head, rest = named[:1], named[1:]
        rest += zip(by_name.node_data()[1], by_name.children(), strict=True)
        self.trees: list[Named] = [*head, *rest]
        self._renamed: dict[str, str] = {}
        self.static: list[Named] = []
        is_function = fun[1].node_data() is None
        self._add("fun", [] if is_function else [("self", fun[1])], () if is_function else fun[0])
        self._add("first", head, first[0])
        self._add("rest", rest, rest_values)

    def path(self, path: str) -> str:
        """The user's path of an array."""
        return self._renamed.get(path, path)

    def _add(self, key: str, trees: list[Named], values: Sequence[Any]) -> None:
        paths = [path for name, tree in trees for path in leaf_paths(tree, name)]
        for i, path in enumerate(paths):
            self._renamed |= {f"{name}['{key}'][{i}]": path for name in _ARRAYS}
        pairs = zip(paths, values, strict=False)
        self.static += [(path, value) for path, value in pairs if value is not None]
        for name, tree in trees:
            self.static += in_structure(tree, name)


def filtered(fun: object, static: Facts, parameters: Sequence[str]) -> FilteredCall | None:
    """The call under filter_jit, taking its argument out of `static`; None if it is another."""
    if not is_of_equinox(fun):
        return None
    try:
        found = FilteredCall(static[_STATIC], parameters)
    except (AttributeError, LookupError, TypeError, ValueError):  # another equinox
        return None
    del static[_STATIC]
    return found
