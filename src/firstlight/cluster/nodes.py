"""The nodes of a cluster: the versions they run, and how many cores they have."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from firstlight.cluster.errors import NodeMismatchError

#: Packages that digits and formats depend on.
_PACKAGES = ("firstlight", "ray", "numpy", "jaxlib")
Versions = tuple[tuple[str, str], ...]


@cache
def versions() -> Versions:
    """The versions of this process, by name."""
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return tuple(found.items())


def mismatch(host: str, there: Versions | str) -> NodeMismatchError:
    """The error for a node with other versions, or on which Firstlight's import fails (text)."""
    if isinstance(there, str):
        return NodeMismatchError(
            f"node {host}: Firstlight cannot be imported there ({there}). Install the same "
            "version on every node: pip install 'firstlight[ray]'"
        )
    other = dict(there)
    shown = [f"{n} is {other.get(n)} there, {v} here" for n, v in versions() if other.get(n) != v]
    return NodeMismatchError(
        f"node {host}: {'; '.join(shown)}. Results of different versions must not be "
        "mixed: install the same versions on every node."
    )


def working(nodes: list[Mapping[str, Any]]) -> float:
    """Cores of the live nodes in `ray.nodes()`."""
    return sum((float(n["Resources"].get("CPU", 0)) for n in nodes if n["Alive"]), 0.0)
