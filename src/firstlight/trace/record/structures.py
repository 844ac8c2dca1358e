"""Structures of arguments as JAX keeps them: paths of their arrays, and what is static in them."""

from __future__ import annotations

from types import FunctionType

from firstlight.trace.record.log_format import WHOLE
from firstlight.trace.record.static_values import taken_apart
from firstlight.trace.record.value_text import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MAX_DEPTH = 50


def leaf_paths(tree: Any, path: str = "") -> Iterator[str]:
    """The path of every leaf, in the order of the leaves, as one writes it in Python."""
    node = tree.node_data()
    if node is None:
        yield path
        return
    children, graph = tree.children(), graph_of(tree)
    if graph is not None:  # of a module of nnx
        named = Graph(graph, path).arrays
        if len(named) == tree.num_leaves:
            yield from named
            return
    for step, child in zip(steps(node[0], node[1], len(children)), children, strict=True):
        yield from leaf_paths(child, path + step)


def steps(kind: type, about: Any, n: int) -> list[str]:
    """How the children of a node are reached."""
    if kind in (tuple, list):
        return [f"[{i}]" for i in range(n)]
    if kind is dict:
        return [f"[{text_of(key)}]" for key in about]
    keys = about[1] if type(about) is tuple and len(about) == 2 else about  # defaultdict
    for several in (about, keys):
        # Mappings keep their keys beside their values, whatever class they are of.
        if type(several) in (tuple, list) and len(several) == n and _are_names(several):
            return [f"[{key!r}]" for key in several]
    names = vars(kind).get("_fields") or _field_names(kind)[0]
    if len(names) == n:
        return [f".{name}" for name in names]
    return [f"[<flat index {i}>]" for i in range(n)]


def _are_names(several: Any) -> bool:
    return all(type(key) is str for key in several)


def _field_names(kind: type) -> tuple[list[str], list[str]]:
    """Of a dataclass: fields that are children, and those that are static.

    As JAX was told when it got to know the class, or by what packages write beside a field.
    """
    from jax._src import tree_util

    entry = getattr(tree_util, "_registry", {}).get(kind)
    flatten = getattr(entry, "to_iter", None)
    if isinstance(flatten, FunctionType):
        held = zip(flatten.__code__.co_freevars, flatten.__closure__ or (), strict=False)
        told = {name: cell.cell_contents for name, cell in held}
        if {"data_fields", "meta_fields"} <= {*told}:
            return list(told["data_fields"]), list(told["meta_fields"])
    fields = vars(kind).get("__dataclass_fields__", {}).values()
    static = [f for f in fields if f.metadata.get("static") or not f.metadata.get("pytree_node", 1)]
    return [f.name for f in fields if f not in static], [f.name for f in static]


def in_structure(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The static part of a pytree."""
    node = tree.node_data()
    if node is None:
        return
    kind, about = node
    children = tree.children()
    graph = graph_of(tree)
    if graph is not None:
        yield from Graph(graph, path).statics
        return
    if kind is not dict and about is not None:
        yield from _beside(kind, about, len(children), path)
    for step, child in zip(steps(kind, about, len(children)), children, strict=True):
        yield from in_structure(child, path + step)


def _beside(kind: type, about: Any, n: int, path: str) -> Iterator[tuple[str, Any]]:
    """What a node keeps beside its children."""
    if any(step.startswith("['") for step in steps(kind, about, n)):
        return  # the keys of a mapping, which are in the paths
    values = list(about) if type(about) is tuple else [about]
    if _names_its_values(values):  # a module of nnx: names of its nodes, of all else, and that
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
    return len(values[1]) == len(values[2]) and all(type(name) is str for name in values[1])


# --- modules of nnx -------------------------------------------------------------------------------


def graph_of(tree: Any) -> Any:
    """What nnx.jit makes of a module: a description, with the arrays in a list beside it."""
    node = tree.node_data()
    if node is None or node[0].__name__ != "NodeStates":
        return None
    first = tree.children()[0].node_data()
    held = None if first is None else first[1]
    return held if type(held).__name__ == "GraphDef" else None


class Graph:
    """The paths of a module's arrays, in the order of the arrays, and its static values."""

    def __init__(self, graph: Any, path: str) -> None:
        self.arrays: list[str] = []
        self.statics: list[tuple[str, Any]] = []
        try:
            self._walk(iter(graph.nodes), iter(graph.attributes), path, 0)
        except (StopIteration, AttributeError, TypeError, ValueError):  # built in another way
            self.arrays = []
        self.statics.append((path + WHOLE, graph))

    def _walk(self, nodes: Any, attributes: Any, path: str, depth: int) -> None:
        node = next(nodes)
        if type(node).__name__ == "VariableDef":
            self.arrays.append(path)
        if type(node).__name__ != "NodeDef" or depth > _MAX_DEPTH:
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
