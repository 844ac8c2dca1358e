"""Where a jit can be, and which, and where numpy does better."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

from firstlight.trace.findings.source import is_generator
from firstlight.trace.read.model import Compile, SourceLine, Trace
from firstlight.trace.wording import where_to_jit

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
#: Operations that only bring values into another order or form.
_MOVING = frozenset(
    (
        *("broadcast_in_dim", "concatenate", "convert_element_type", "copy", "dynamic_slice"),
        *("dynamic_update_slice", "expand_dims", "gather", "iota", "pad", "reshape", "rev"),
        *("scatter", "select_n", "slice", "sort", "split", "squeeze", "stack", "transpose"),
        *("unstack", "_pad", "_roll_static", "_squeeze", "_take", "_where"),
    )
)
_OF_DATA = re.compile("batch|collate|data|load|tokeni[sz]e|augment|shuffle", re.IGNORECASE)
_FORMING = re.compile("prepare|preprocess|normali[sz]e|standardi[sz]e|encode|split", re.IGNORECASE)


def named_function(place: SourceLine) -> str | None:
    """The function around a lambda or a comprehension, whose name says more."""
    name = place.function
    while name and name.rpartition(".")[2].startswith("<") and ".<locals>." in name:
        name = name.rpartition(".<locals>.")[0]
    # A comprehension outside of any function is the file's.
    return "<module>" if name and name.rpartition(".")[2] in _COMPREHENSIONS else name


def compiles_under_jit(compiles: list[Compile]) -> str:
    """What is left of these compiles under one jit, as far as that can be known."""
    if len(compiles) == 1:
        return "one compile, with all else that is in it"
    often = Counter((one.name, where_to_jit(one)) for one in compiles)
    if max(often.values()) == 1:
        return f"one compile instead of {len(compiles)}"
    # A line that compiled an operation again did so for another shape, and so may the function.
    return f"one compile for each combination of shapes that it is called with, not {len(compiles)}"


def prepares_data(function: str, compiles: list[Compile]) -> bool:
    """Whether numpy would do: it is about data by its name, or values are brought into form.

    What is drawn at random may be weights, which are JAX's to draw.
    """
    bare = function.rpartition("<locals>.")[2]
    if _OF_DATA.search(bare):
        return True
    names = [one.name for one in compiles]
    if any("random" in name or "threefry" in name or name == "_shuffle" for name in names):
        return False
    moved = sum(name in _MOVING for name in names)
    return bool(_FORMING.search(bare)) or 2 * moved > len(names)


def can_be_jitted(place: SourceLine, trace: Trace) -> bool:
    """Whether a whole function can: not one that yields, calls what is compiled, or reads results.

    An epoch is such a one: its steps would be unrolled into one program.
    """
    name = named_function(place)
    if name in (None, "<module>") or is_generator(place, trace.started_at):
        return False
    compiled = (
        where
        for function in trace.functions
        if not function.library
        for one in function.compiles
        for where in (one.user_site, one.entry_site)
    )
    reading = (wait.user_site for process in trace.processes for wait in process.waits)
    return all(
        (where.file, named_function(where)) != (place.file, name)
        for where in (*compiled, *reading)
        if where is not None
    )


def jit_for(compiles: Iterable[Compile]) -> str:
    """The jit of the package that made the calls: its modules hold more than arrays."""
    files = [one.site.file.replace(os.sep, "/") for one in compiles if one.site]
    if any("/equinox/" in file for file in files):
        return "equinox.filter_jit"
    return "flax.nnx.jit" if any("/flax/nnx/" in file for file in files) else "jax.jit"
