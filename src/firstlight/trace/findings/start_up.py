"""Before the first result: operations that are compiled one by one, and imports."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from firstlight.trace.findings import thresholds as limits
from firstlight.trace.findings.wording import listed, location, seconds_of, short, where_called
from firstlight.trace.model import Compile, Finding, ImportedPackage, Place, Trace
from firstlight.trace.packages import JAX_ITSELF


def one_op_compiles(trace: Trace) -> Iterator[Finding]:
    """Operations outside of any jit, by the function of the program that they are in."""
    groups: dict[tuple[str, str | None], list[Compile]] = defaultdict(list)
    for function in trace.functions:
        for one in function.compiles if function.library else ():
            place = where_called(one)
            if one.compiled and place is not None:
                groups[place.file, _named_function(place)].append(one)
    for (_, name), compiles in groups.items():
        if len(compiles) >= limits.ONE_OP_COMPILES:
            yield _one_op_finding(name, compiles)


def _named_function(place: Place) -> str | None:
    """The function around a lambda or a comprehension, whose name says more."""
    name = place.function
    while name and name.rpartition(".")[2].startswith("<") and ".<locals>." in name:
        name = name.rpartition(".<locals>.")[0]
    return name


def _one_op_finding(name: str | None, compiles: list[Compile]) -> Finding:
    by_line: dict[Place, list[Compile]] = defaultdict(list)
    for one in compiles:
        place = where_called(one)
        assert place is not None
        by_line[place].append(one)
    lines = sorted(by_line.items(), key=lambda item: -sum(map(seconds_of, item[1])))
    worst, here = lines[0][0], name or "<module>"
    operations = Counter(one.name for one in compiles)
    scope = "at the top of the file" if here == "<module>" else f"in {here}"
    return Finding(
        kind="one-op-compiles",
        seconds=sum(map(seconds_of, compiles)),
        title=f"{len(compiles)} operations {scope} run outside of jit: each is compiled by itself.",
        function=here,
        location=location(worst),
        remedy=_one_op_remedy(here, compiles, _line_numbers(lines)),
        evidence={
            "operations": dict(operations.most_common(10)),
            "lines": [[location(p), len(c), sum(map(seconds_of, c))] for p, c in lines[:20]],
        },
    )


def _one_op_remedy(function: str, compiles: list[Compile], lines: list[str]) -> str:
    packages = Counter(
        one.site.package
        for one in compiles
        if one.site and one.site.package and one.site.package not in JAX_ITSELF
    )
    if sum(packages.values()) > len(compiles) / 2:
        # Not the user's own operations: nobody can put a jit inside of an installed package.
        return (
            f"Most of them are run by {listed(p for p, _ in packages.most_common(3))}, called at "
            f"line {listed(lines)}: call that within a function under jax.jit if it can be, else "
            "a persistent cache with jax_persistent_cache_min_compile_time_secs 0 saves them from "
            "the second start on."
        )
    what = (
        f"Put lines {listed(lines)} into a function under jax.jit"
        if function == "<module>"
        else f"Put jax.jit around {function}, or around the part of it with lines {listed(lines)}"
    )
    return (
        f"{what}: one compile instead of {len(compiles)}. Where the values are known before "
        "(constants, data to prepare), use numpy: it compiles nothing."
    )


def _line_numbers(lines: list[tuple[Place, list[Compile]]]) -> list[str]:
    return [str(number) for number in sorted({place.line for place, _ in lines})]


def expensive_imports(trace: Trace) -> Iterator[Finding]:
    """Packages beyond JAX that take long to import, and that no compile had to do with."""
    used = _packages_in_use(trace)
    for process in trace.processes:
        if process.jax_version is None:
            continue  # a helper: nobody waits for a result of it
        by_name = {package.name: package for package in process.imports}
        for package in process.imports:
            if _is_told(package, by_name, used):
                yield _import_finding(package)


def _packages_in_use(trace: Trace) -> set[str]:
    modules = {(f.module or "").partition(".")[0] for f in trace.functions}
    places = [p for f in trace.functions for c in f.compiles for p in (f.place, c.site)]
    return modules | {place.package for place in places if place and place.package}


def _is_told(
    package: ImportedPackage, by_name: Mapping[str, ImportedPackage], used: set[str]
) -> bool:
    if package.beyond_jax_seconds < limits.IMPORT_SECONDS or package.name in used | JAX_ITSELF:
        return False
    if package.name in sys.stdlib_module_names:
        return False
    # What another one brings with it is told there, or is needed as that one is.
    importer = by_name.get(package.imported_by or "")
    return importer is None or (
        importer.name not in used | JAX_ITSELF
        and importer.beyond_jax_seconds < limits.IMPORT_SECONDS
    )


def _import_finding(package: ImportedPackage) -> Finding:
    return Finding(
        kind="expensive-import",
        seconds=package.beyond_jax_seconds,
        title=f"Importing {package.name} takes {package.beyond_jax_seconds:.2f} s.",
        function=package.name,
        location=location(package.site),
        remedy=f"If the first result does not need {package.name}, move the import from "
        f"{short(package.site)} into the function that does; if nothing does, drop it.",
        evidence={"modules": package.modules, "own_seconds": package.seconds},
    )
