"""Before the first result: operations compiled one by one, imports, reserved GPU memory."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from firstlight.present.quantities import duration, listed
from firstlight.trace.findings import thresholds
from firstlight.trace.findings.costs import cost, is_part_of_start
from firstlight.trace.findings.source import is_generator
from firstlight.trace.read.imported_packages import JAX_ITSELF
from firstlight.trace.read.model import (
    CONTROL_FLOW,
    Compile,
    Finding,
    ImportedPackage,
    SourceLine,
    Span,
    Trace,
)
from firstlight.trace.wording import short, where_to_jit

_Call = tuple[SourceLine, Compile]  # an operation, with the line that a jit can go around
_Lines = list[tuple[SourceLine, list[Compile]]]

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
#: Operations that only rearrange or convert values.
_MOVING = re.compile(
    "broadcast_in_dim|concatenate|convert_element_type|copy|dynamic_slice|dynamic_update_slice|"
    "expand_dims|gather|iota|pad|reshape|rev|scatter|select_n|slice|sort|split|squeeze|stack|"
    "transpose|unstack|_pad|_roll_static|_squeeze|_take|_where"
)
_OF_DATA = re.compile("batch|collate|data|load|tokeni[sz]e|augment|shuffle", re.IGNORECASE)
_FORMING = re.compile("prepare|preprocess|normali[sz]e|standardi[sz]e|encode|split", re.IGNORECASE)
#: The operation that iterating over an array runs.
_ITERATING = "unstack"
_WITHOUT_COMPILING = (
    "For values known beforehand (constants, data to prepare), use numpy: it compiles nothing."
)


# --- operations outside any jit -------------------------------------------------------------------


def one_op_compiles(trace: Trace) -> Iterator[Finding]:
    """Operations outside any jit, by the function of the program that they are in.

    Functions with too few for a finding of their own are reported together.
    """
    groups: dict[tuple[str, str | None], list[_Call]] = defaultdict(list)
    for place, one in _outside_of_jit(trace):
        groups[place.file, _named_function(place)].append((place, one))
    scattered: list[_Call] = []
    for (_, name), calls in groups.items():
        compiles = [one for _, one in calls]
        spent = sum(c.seconds for c in compiles)
        long = spent >= thresholds.ONE_OP_SHARE * sum(f.seconds for f in trace.functions)
        long &= is_part_of_start(trace, compiles, spent, thresholds.ONE_OP_SHARE_OF_START)
        if len(compiles) >= thresholds.ONE_OP_COMPILES or long:
            function = name or "<module>"
            scope = "at the top of the file" if function == "<module>" else f"in {function}"
            run, each = f"{len(compiles)} operations {scope} run", "each"
            if len(compiles) == 1:
                run, each = f"{compiles[0].name} {scope} runs", "it"
            what = f"{run} outside jit: {each} is compiled separately."
            lines = _by_line(calls)
            yield _finding(what, function, _one_op_remedy(function, compiles, lines, trace), lines)
        else:
            scattered += calls
    if len(scattered) >= thresholds.ONE_OP_COMPILES_IN_ALL:
        lines = _by_line(scattered)
        places = len({(place.file, _named_function(place)) for place, _ in lines})
        yield _finding(
            f"{len(scattered)} operations in {places} places of the program run outside jit: each "
            "is compiled separately.",
            None,
            f"The most expensive are at {listed((short(place) for place, _ in lines), 4)}. "
            f"{_WITHOUT_COMPILING} Put what belongs to one step of the work under one jax.jit.",
            lines,
        )


def _outside_of_jit(trace: Trace) -> Iterator[_Call]:
    """Operations compiled outside any jit.

    Without those that run while the same thread traces a jitted function: they compute constants
    of its program (as solvers do with ensure_compile_time_eval).
    """
    tracing: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for one in (c for f in trace.functions if not f.library for c in f.compiles):
        tracing[one.process, one.thread] += [s for s in one.stages if s.kind == "trace"]
    for function in trace.functions:
        # A loop is compiled for its body, which a jit does not change.
        alone = function.library and function.name not in CONTROL_FLOW
        for one in function.compiles if alone else ():
            place = where_to_jit(one)
            while_traced = any(
                span.begin_seconds <= one.begin_seconds < span.end_seconds
                for span in tracing[one.process, one.thread]
            )
            if one.compiled and place is not None and not while_traced:
                yield place, one


def _by_line(calls: Iterable[_Call]) -> _Lines:
    """The lines that operations are called from, the most expensive first."""
    lines: dict[SourceLine, list[Compile]] = defaultdict(list)
    for place, one in calls:
        lines[place].append(one)
    return sorted(lines.items(), key=lambda item: -sum(c.seconds for c in item[1]))


def _finding(title: str, function: str | None, remedy: str, lines: _Lines) -> Finding:
    compiles = [one for _, of_line in lines for one in of_line]
    return Finding(
        kind="one-op-compiles",
        **cost(compiles),
        title=title,
        function=function,
        place=lines[0][0],
        remedy=remedy,
        evidence={
            "operations": dict(Counter(one.name for one in compiles).most_common(10)),
            "lines": [[p.location, len(of), sum(c.seconds for c in of)] for p, of in lines[:20]],
        },
    )


def _one_op_remedy(
    function: str, compiles: Sequence[Compile], by_line: _Lines, trace: Trace
) -> str:
    lines, left = _in_words(by_line), _left_under_jit(compiles)
    iterated = [(p, c) for p, of_line in by_line for c in of_line if c.name == _ITERATING]
    if 2 * sum(c.seconds for _, c in iterated) > sum(c.seconds for c in compiles):
        return (
            f"A JAX array is iterated over at {_in_words(_by_line(iterated))}, which compiles a "
            "program to split it: iterate over np.asarray of it, or over its indices."
        )
    within = [one.site.package if one.site else None for one in compiles]
    packages = Counter(name for name in within if name and name not in JAX_ITSELF)
    # Operations of the user's code that a package called: see `Compile.entry_site`.
    layers = sum(
        one.entry_site is not None and not name for one, name in zip(compiles, within, strict=True)
    )
    if packages.total() + layers > len(compiles) / 2:
        # The user cannot put a jit around these where they are written.
        run_by = f"run by {listed(p for p, _ in packages.most_common(3))}, " if packages else ""
        return (
            f"Most of them are {run_by}called at {lines}: call that in a function under "
            f"{jit_for(compiles)} if possible; otherwise `firstlight exec` saves them from the "
            "second start on."
        )
    if function.rpartition(".")[2].startswith("test"):
        what = f"Put the work of {lines} into a function under jax.jit and assert on its results."
        return f"{what} {_WITHOUT_COMPILING}"
    if _prepares_data(function, compiles):
        return (
            f"Prepare the data at {lines} with numpy, and pass the result to JAX: numpy compiles "
            f"nothing. Under jax.jit it would be {left}."
        )
    what = f"Put {lines} into a function under jax.jit"
    if _can_be_jitted(by_line[0][0], trace):
        what = (
            f"Put jax.jit around {function}, or around the part of it with {lines} (values that "
            "determine shapes must not be arguments: jax.jit(lambda x: f(x, sizes)))"
        )
    return f"{what}: {left}. {_WITHOUT_COMPILING}"


def _in_words(lines: _Lines) -> str:
    """`lines 12, 40 and 3 more`, the most expensive first."""
    numbers = list(dict.fromkeys(str(place.line) for place, _ in lines))
    return f"{'line' if len(numbers) == 1 else 'lines'} {listed(numbers)}"


def _named_function(place: SourceLine) -> str | None:
    """The function of a place; for a lambda or a comprehension, the function around it."""
    name = place.function
    while name and name.rpartition(".")[2].startswith("<") and ".<locals>." in name:
        name = name.rpartition(".<locals>.")[0]
    # A comprehension outside any function belongs to the file.
    return "<module>" if name and name.rpartition(".")[2] in _COMPREHENSIONS else name


def _left_under_jit(compiles: Sequence[Compile]) -> str:
    """How many of these compiles would remain under one jit."""
    if len(compiles) == 1:
        return "one compile for everything in it"
    if max(Counter((one.name, where_to_jit(one)) for one in compiles).values()) == 1:
        return f"one compile instead of {len(compiles)}"
    # A line that compiled an operation again did so for another shape; so may the function.
    return f"one compile per combination of shapes, not {len(compiles)}"


def _prepares_data(function: str, compiles: Sequence[Compile]) -> bool:
    """Whether numpy would do: the function's name is about data, or it mostly moves values.

    Random values may be weights, which JAX should draw.
    """
    bare = function.rpartition("<locals>.")[2]
    if _OF_DATA.search(bare):
        return True
    names = [one.name for one in compiles]
    if any("random" in name or "threefry" in name or name == "_shuffle" for name in names):
        return False
    moved = [name for name in names if _MOVING.fullmatch(name)]
    return bool(_FORMING.search(bare)) or 2 * len(moved) > len(names)


def _can_be_jitted(place: SourceLine, trace: Trace) -> bool:
    """Whether jit can go around a whole function: it neither yields, calls compiled functions nor
    reads results, as an epoch does, whose steps would be unrolled into one program."""
    name = _named_function(place)
    if name in (None, "<module>") or is_generator(place, trace.started_at):
        return False
    called = [c for f in trace.functions if not f.library for c in f.compiles]
    needed = [where for one in called for where in (one.user_site, one.entry_site)]
    needed += [wait.user_site for process in trace.processes for wait in process.waits]
    return all(
        (where.file, _named_function(where)) != (place.file, name) for where in needed if where
    )


def jit_for(compiles: Sequence[Compile]) -> str:
    """The jit to recommend: that of the package that made the calls, whose modules need it."""
    files = [one.site.file.replace(os.sep, "/") for one in compiles if one.site]
    if any("/equinox/" in file for file in files):
        return "equinox.filter_jit"
    return "flax.nnx.jit" if any("/flax/nnx/" in file for file in files) else "jax.jit"


# --- memory of a device ---------------------------------------------------------------------------


def reserved_memory(trace: Trace) -> Iterator[Finding]:
    """The first use of a GPU, which by default reserves most of its memory."""
    for process in trace.processes:
        use, first = process.device_use, process.first_result_seconds
        if use is None or not use.reserves_memory or (first and use.begin_seconds > first):
            continue
        start = first or process.wall_seconds or 0.0
        if use.seconds >= thresholds.RESERVED_MEMORY_SHARE * start:
            yield Finding(
                kind="gpu-memory-preallocation",
                seconds=use.seconds,
                title=f"The first use of the {use.platform} device takes {duration(use.seconds)}: "
                "JAX reserves most of its memory.",
                function=None,
                place=None,
                remedy="Set XLA_PYTHON_CLIENT_PREALLOCATE=false before JAX is imported: memory is "
                "then reserved as it is needed. For a long training that fills the card, leave it: "
                "memory that is reserved at once does not fragment.",
                evidence={"platform": use.platform},
                before_first_result_seconds=use.seconds if first else None,
                apart=True,
            )


# --- imports --------------------------------------------------------------------------------------


def expensive_imports(trace: Trace) -> Iterator[Finding]:
    """Packages other than JAX that take long to import and have no part in any compile."""
    compiles = [(f, c) for f in trace.functions for c in f.compiles]
    places = [place for f, c in compiles for place in (f.place, c.site, *c.stack) if place]
    needed = JAX_ITSELF | {place.package for place in places if place.package}
    needed |= {name for f, c in compiles for name in (*c.packages, (f.module or "").split(".")[0])}
    for process in trace.processes:
        if process.jax_version is None:
            continue  # it computes no result
        jax = sum(package.seconds for package in process.imports if package.name in JAX_ITSELF)
        least = thresholds.IMPORT_SHARE_OF_JAX * jax
        long = {p.name: p for p in process.imports if jax and p.beyond_jax_seconds >= least}
        # A package imported by one of these is reported there, or is needed as much.
        importers = needed | set(long)
        for package in long.values():
            first = process.first_result_seconds
            late = first is not None and package.begin_seconds > first
            own = package.name not in needed | sys.stdlib_module_names
            # Without an import statement, the package is the program: python -m pytest.
            if own and package.site and package.imported_by not in importers and not late:
                yield _import_finding(package, package.site)


def _import_finding(package: ImportedPackage, site: SourceLine) -> Finding:
    name, line = package.name, short(site)
    remedy = f"move the import from {line} into the function that needs it, or drop it."
    if site.function not in (None, "<module>"):
        remedy = f"call {site.function}, which imports it at {line}, only after that result."
    return Finding(
        kind="expensive-import",
        seconds=package.beyond_jax_seconds,
        title=f"Importing {name} takes {duration(package.beyond_jax_seconds)}.",
        function=name,
        place=site,
        remedy=f"If the first result needs neither {name} nor a package that imports it, {remedy}",
        evidence={"modules": package.modules, "own_seconds": package.seconds},
    )
