"""Before the first result: operations that are compiled one by one, and imports."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from firstlight.present.quantities import duration, listed
from firstlight.trace.findings import thresholds as limits
from firstlight.trace.findings.costs import cost, is_part_of_start
from firstlight.trace.findings.jits import (
    can_be_jitted,
    compiles_under_jit,
    jit_for,
    named_function,
    prepares_data,
)
from firstlight.trace.read.imported_packages import JAX_ITSELF
from firstlight.trace.read.model import (
    CONTROL_FLOW,
    Compile,
    Finding,
    ImportedPackage,
    Process,
    SourceLine,
    Span,
    Trace,
)
from firstlight.trace.wording import short, where_to_jit


def one_op_compiles(trace: Trace) -> Iterator[Finding]:
    """Operations outside of any jit, by the function of the program that they are in.

    What is spread over functions too thinly to be told of any is told of the program.
    """
    groups: dict[tuple[str, str | None], list[Compile]] = defaultdict(list)
    tracing = _traced_by_thread(trace)
    for function in trace.functions:
        # A loop is compiled for its body, within a jit as well.
        alone = function.library and function.name not in CONTROL_FLOW
        for one in function.compiles if alone else ():
            place = where_to_jit(one)
            while_traced = any(
                span.begin_seconds <= one.begin_seconds < span.end_seconds
                for span in tracing[one.process, one.thread]
            )
            if one.compiled and place is not None and not while_traced:
                groups[place.file, named_function(place)].append(one)
    thin: list[Compile] = []
    for (_, name), compiles in groups.items():
        many, spent = len(compiles) >= limits.ONE_OP_COMPILES, sum(c.seconds for c in compiles)
        long = spent >= limits.ONE_OP_SHARE * sum(f.seconds for f in trace.functions)
        long &= is_part_of_start(trace, compiles, spent, limits.ONE_OP_SHARE_OF_START)
        if many or long:
            yield _one_op_finding(name, compiles, trace)
        else:
            thin += compiles
    if len(thin) >= limits.ONE_OP_COMPILES_IN_ALL:
        yield _thin_finding(thin)


def _traced_by_thread(trace: Trace) -> dict[tuple[int, int], list[Span]]:
    """When each thread of a process traced a function that somebody put under jit.

    What runs by itself meanwhile is computed for the program that is being made (as solvers do with
    ensure_compile_time_eval): it is in a jit already.
    """
    found: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for function in trace.functions:
        for one in function.compiles if not function.library else ():
            found[one.process, one.thread] += [s for s in one.stages if s.kind == "trace"]
    return found


_Lines = list[tuple[SourceLine, list[Compile]]]


def _by_line(compiles: list[Compile]) -> _Lines:
    """The lines that operations are called from, the most expensive first."""
    lines: dict[SourceLine, list[Compile]] = defaultdict(list)
    for one in compiles:
        place = where_to_jit(one)
        assert place is not None
        lines[place].append(one)
    return sorted(lines.items(), key=lambda item: -sum(c.seconds for c in item[1]))


def _evidence(compiles: list[Compile], lines: _Lines) -> dict[str, Any]:
    return {
        "operations": dict(Counter(one.name for one in compiles).most_common(10)),
        "lines": [[p.location, len(of), sum(c.seconds for c in of)] for p, of in lines[:20]],
    }


def _one_op_finding(name: str | None, compiles: list[Compile], trace: Trace) -> Finding:
    lines, here = _by_line(compiles), name or "<module>"
    scope = "at the top of the file" if here == "<module>" else f"in {here}"
    what = f"{len(compiles)} operations {scope} run outside of jit: each is compiled by itself."
    if len(compiles) == 1:
        what = f"{compiles[0].name} {scope} runs outside of jit: it is compiled by itself."
    return Finding(
        kind="one-op-compiles",
        **cost(compiles),
        title=what,
        function=here,
        place=lines[0][0],
        remedy=_one_op_remedy(here, compiles, _in_words(lines), can_be_jitted(lines[0][0], trace)),
        evidence=_evidence(compiles, lines),
    )


def _thin_finding(compiles: list[Compile]) -> Finding:
    lines = _by_line(compiles)
    functions = {(place.file, named_function(place)) for place, _ in lines}
    return Finding(
        kind="one-op-compiles",
        **cost(compiles),
        title=f"{len(compiles)} operations in {len(functions)} places of the program run outside "
        "of jit: each is compiled by itself.",
        function=None,
        place=lines[0][0],
        remedy=f"The most expensive are at {listed((short(place) for place, _ in lines), 4)}. "
        f"{_WITHOUT_COMPILING} What belongs to one step of the work, put under one jax.jit.",
        evidence=_evidence(compiles, lines),
    )


#: The operation that iterating over an array runs.
_ITERATING = "unstack"
_WITHOUT_COMPILING = (
    "Where the values are known before (constants, data to prepare), use numpy: it compiles "
    "nothing."
)


def _one_op_remedy(function: str, compiles: list[Compile], lines: str, whole: bool) -> str:
    """whole: jit can be put around the whole function."""
    iterated = [c for c in compiles if c.name == _ITERATING]
    if 2 * sum(c.seconds for c in iterated) > sum(c.seconds for c in compiles):
        return (
            f"An array of JAX is iterated over at {_in_words(_by_line(iterated))}, which compiles "
            "a program that takes it apart: iterate over np.asarray of it, or over its indices."
        )
    packages = Counter(
        place.package
        for one in compiles
        if (place := one.site) and place.package and place.package not in JAX_ITSELF
    )
    if sum(packages.values()) + sum(_is_in_layer(c) for c in compiles) > len(compiles) / 2:
        # Not operations that the user could put a jit around where they are written.
        run_by = f"run by {listed(p for p, _ in packages.most_common(3))}, " if packages else ""
        return (
            f"Most of them are {run_by}called at {lines}: call that within a function "
            f"under {jit_for(compiles)} if it can be, else a persistent cache with "
            "jax_persistent_cache_min_compile_time_secs 0 saves them from the second start on."
        )
    if function.rpartition(".")[2].startswith("test"):
        what = f"Put the work of {lines} into a function under jax.jit and assert "
        return f"{what}on its results. {_WITHOUT_COMPILING}"
    left = compiles_under_jit(compiles)
    if prepares_data(function, compiles):
        return (
            f"Prepare the data at {lines} with numpy, and give JAX what comes of it: numpy "
            f"compiles nothing, whatever the shapes. Under jax.jit it would be {left}."
        )
    what = (
        f"Put {lines} into a function under jax.jit"
        if not whole
        else f"Put jax.jit around {function}, or around the part of it with {lines} (what decides "
        "on shapes stays outside of its arguments: jax.jit(lambda x: f(x, sizes)))"
    )
    return f"{what}: {left}. {_WITHOUT_COMPILING}"


def _is_in_layer(one: Compile) -> bool:
    """Whether the user's own operation was run by a package: see `Compile.entry_site`."""
    return one.entry_site is not None and (one.site is None or one.site.package is None)


def _in_words(lines: _Lines) -> str:
    """`lines 12, 40 and 3 more`, the most expensive first."""
    numbers = list(dict.fromkeys(str(place.line) for place, _ in lines))
    return f"{'line' if len(numbers) == 1 else 'lines'} {listed(numbers)}"


def expensive_imports(trace: Trace) -> Iterator[Finding]:
    """Packages beyond JAX that take long to import, and that no compile had to do with."""
    used = _packages_in_use(trace)
    for process in trace.processes:
        if process.jax_version is None:
            continue  # a helper: nobody waits for a result of it
        jax = sum(package.seconds for package in process.imports if package.name in JAX_ITSELF)
        least = limits.IMPORT_SHARE_OF_JAX * jax
        long = {p.name: p for p in process.imports if jax and p.beyond_jax_seconds >= least}
        for package in long.values():
            if not _is_late(package, process) and _is_told(package, long, used):
                yield _import_finding(package)


def _is_late(package: ImportedPackage, process: Process) -> bool:
    """Whether the first result was there before it: it is imported where it is needed."""
    first = process.first_result_seconds
    return first is not None and package.begin_seconds > first


def _packages_in_use(trace: Trace) -> set[str]:
    modules = {(f.module or "").partition(".")[0] for f in trace.functions}
    places = [p for f in trace.functions for c in f.compiles for p in (f.place, c.site, *c.stack)]
    traced = {name for f in trace.functions for c in f.compiles for name in c.packages}
    return modules | traced | {place.package for place in places if place and place.package}


def _is_told(package: ImportedPackage, long: Mapping[str, ImportedPackage], used: set[str]) -> bool:
    if package.name in used | JAX_ITSELF:
        return False
    if package.name in sys.stdlib_module_names or package.site is None:
        return False  # without a line that imports it, it is the program: python -m pytest
    # What another one brings with it is told there, or is needed as that one is.
    return package.imported_by not in used | JAX_ITSELF | set(long)


def _import_finding(package: ImportedPackage) -> Finding:
    return Finding(
        kind="expensive-import",
        seconds=package.beyond_jax_seconds,
        title=f"Importing {package.name} takes {duration(package.beyond_jax_seconds)}.",
        function=package.name,
        place=package.site,
        remedy=_import_remedy(package),
        evidence={"modules": package.modules, "own_seconds": package.seconds},
    )


def _import_remedy(package: ImportedPackage) -> str:
    needless = f"If the first result needs neither {package.name} nor a package that imports it"
    within = package.site and package.site.function
    if within not in (None, "<module>"):
        return f"{needless}, call {within}, which imports it at {short(package.site)}, after it."
    return (
        f"{needless}, move the import from {short(package.site)} into the function that does; if "
        "nothing does, drop it."
    )
