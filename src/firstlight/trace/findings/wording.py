"""Places, counts and lists of a finding in words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from firstlight.trace.model import Compile, Function, Place


def location(place: Place | None) -> str | None:
    """`file:line`, to jump to."""
    return None if place is None else f"{place.file}:{place.line}"


def short(place: Place | None) -> str:
    """`train.py:12`, to read."""
    return "an unknown line" if place is None else f"{os.path.basename(place.file)}:{place.line}"


def where_called(one: Compile) -> Place | None:
    """The line of the user that called; of a package, where there is none of the user."""
    return one.user_site or one.site


def where_to_jit(one: Compile) -> Place | None:
    """The line of the user that a jit can be put around.

    A layer is run by the package of its network: that is the line which calls the network.
    """
    return one.entry_site or where_called(one)


def times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


def listed(words: Iterable[str], most: int = 6) -> str:
    """`a, b, c and 4 more`."""
    every = list(words)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def readable(function: Function) -> str:
    """The name of a function, with its line where the name says nothing."""
    bare = function.name.rpartition(".")[2]
    return f"{bare} at {short(function.place)}" if bare.startswith("<") else bare


def again_so_often(function: Function, again: Sequence[Compile]) -> str:
    """`step is compiled again twice`."""
    return f"{readable(function)} is compiled again {times(len(again))}"


def first_difference(again: Sequence[Compile]) -> str:
    """An example of what differs, and how much more does."""
    return listed((d.words for d in again[0].recompile_differences), 1)


def differing(again: Sequence[Compile]) -> str:
    """Names of the arguments that differ."""
    paths = dict.fromkeys(path for one in again for path in one.differing)
    return listed(paths, 3) or "the argument"
