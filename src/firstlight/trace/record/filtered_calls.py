"""Calls under `equinox.filter_jit`, by the names of the user.

Equinox calls one function of its own with all arrays of a call in flat tuples, and with all else,
structures included, as one static argument. What each was before is put together again here.
"""

from __future__ import annotations

from firstlight.trace.record.definitions import is_of_equinox
from firstlight.trace.record.structures import in_structure, leaf_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Parameters of the function of equinox, and the keys under which the arrays of a call are there.
_ARRAYS = ("dynamic_donate", "dynamic_nodonate")
STATIC = "static"


class FilteredCall:
    """The arguments of a call: structures by name, new paths of its arrays, its static values."""

    def __init__(self, static: Any, parameters: Sequence[str]) -> None:
        fun, first, (rest_values, rest_tree) = static
        by_position, by_name = rest_tree.children()
        # Equinox adds a None to the arguments by position, so that there always is a first one.
        trees = [first[1], *by_position.children()][:-1]
        unnamed = (f"[{i}]" for i in range(len(parameters), len(trees)))
        named = list(zip([*parameters, *unnamed], trees, strict=False))
        head, rest = named[:1], named[1:]
        rest += zip(by_name.node_data()[1], by_name.children(), strict=True)
        self.trees: list[tuple[str, Any]] = [*head, *rest]
        self._renamed: dict[str, str] = {}
        self.static: list[tuple[str, Any]] = []
        is_function = fun[1].node_data() is None
        self._add("fun", [] if is_function else [("self", fun[1])], () if is_function else fun[0])
        self._add("first", head, first[0])
        self._add("rest", rest, rest_values)

    def path(self, path: str) -> str:
        """The user's path of an array."""
        return self._renamed.get(path, path)

    def _add(self, key: str, trees: list[tuple[str, Any]], values: Sequence[Any]) -> None:
        paths = [path for name, tree in trees for path in leaf_paths(tree, name)]
        for i, path in enumerate(paths):
            self._renamed |= {f"{name}['{key}'][{i}]": path for name in _ARRAYS}
        told = zip(paths, values, strict=False)
        self.static += [(path, value) for path, value in told if value is not None]
        for name, tree in trees:
            self.static += in_structure(tree, name)


def filtered(fun: Any, static: Any, parameters: Sequence[str]) -> FilteredCall | None:
    """None: it is no such call, or one of an equinox that is built in another way."""
    if not is_of_equinox(fun):
        return None
    try:
        return FilteredCall(static, parameters)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
