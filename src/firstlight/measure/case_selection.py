"""Select cases from the catalogue; the sample sizes of each effort level."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from firstlight.errors import FirstlightError
from firstlight.records import Case, Settings
from firstlight.workloads.catalog import QUICK, SUITES, Backend, Size, Workload


class SelectionError(FirstlightError):
    """No case matches the request; the message suggests the closest name."""


#: Six is the smallest number of processes whose exact interval for a median covers 95 %.
SAMPLING = {
    "quick": Settings(6, 1000, 20, 0.25, 5, 0.02, 120.0, None, 0),
    #: Both sides alternate in twenty windows of 20 ms: short enough that both see the same machine
    #: state. The total is short because cold starts need many rounds.
    "gate": Settings(6, 4000, 20, 0.4, 5, 0.02, 120.0, None, 0),
    "standard": Settings(10, 1000, 30, 1.0, 10, 0.05, 300.0, None, 0),
    "full": Settings(20, 1000, 30, 1.0, 10, 0.05, 600.0, None, 0),
    "rigorous": Settings(30, 2000, 50, 3.0, 20, 0.1, 600.0, None, 0),
}


def suggestion(name: str, known: Iterable[str]) -> str:
    """A hint for a mistyped name: the closest known name, and all known names."""
    import difflib

    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(names)}."


def resolve_backends(
    wanted: Sequence[str] | None, backends: Mapping[str, Backend]
) -> tuple[str, ...] | None:
    for name in wanted or ():
        if name not in backends:
            raise SelectionError(f"unknown backend {name!r}.{suggestion(name, backends)}")
    return tuple(dict.fromkeys(wanted)) if wanted else None


def select(
    target: str,
    workloads: Mapping[str, Workload],
    backends: Mapping[str, Backend],
    wanted_backends: Sequence[str] | None = None,
    caches: Sequence[str] | None = None,
    pattern: str | None = None,
) -> list[Case]:
    """The cases of a suite or a workload, filtered by backend, cache policy and regex."""
    if target not in SUITES and target not in workloads:
        raise SelectionError(
            f"unknown suite or workload {target!r}.{suggestion(target, [*SUITES, *workloads])} "
            "To measure your own file, give a path that ends in .py."
        )
    named = resolve_backends(wanted_backends, backends)
    cases = [
        make_case(workload, size, backends[name], cache)
        for workload, size in _members(target, workloads)
        for name in named or workload.backends or backends
        if _program(workload, workload.sizes[size], backends[name]) is not None
        for cache in _policies(target, backends[name], caches)
    ]
    if target == "quick" and named is None:
        quick = {(i.rsplit("/", 1)[0] if caches else i) for i in QUICK}
        cases = [c for c in cases if (c.id.rsplit("/", 1)[0] if caches else c.id) in quick]
    return filter_cases(cases, pattern)


def filter_cases(cases: list[Case], pattern: str | None) -> list[Case]:
    if not cases:
        raise SelectionError(
            "no case matches: the workload has no program for this backend and this cache policy "
            "(shared is for JAX; frozen and tiered are for jax-jit)."
        )
    try:
        kept = [c for c in cases if re.search(pattern or "", c.id)]
    except re.error as error:
        raise SelectionError(f"-b {pattern!r} is not a regular expression: {error}") from None
    if not kept:
        hint = suggestion(pattern or "", {c.workload for c in cases})
        raise SelectionError(f"-b {pattern!r} matches none of {len(cases)} cases.{hint}")
    return kept


def _members(target: str, workloads: Mapping[str, Workload]) -> Iterable[tuple[Workload, str]]:
    """(workload, size) pairs of a suite, or all sizes of one workload."""
    for workload in workloads.values() if target in SUITES else (workloads[target],):
        sizes = tuple(workload.sizes)
        if target == "quick":
            named = [(s, f"{workload.name}[{s}]") for s in sizes]
            sizes = tuple(s for s, name in named if any(q.startswith(name) for q in QUICK))
        elif target == "standard":
            sizes = workload.standard or sizes[:1]
        for size in sizes:
            yield workload, size


def _program(workload: Workload, size: Size, backend: Backend) -> str | None:
    if workload.backends is not None and backend.name not in workload.backends:
        return None
    if size.frameworks is not None and backend.framework not in size.frameworks:
        return None
    return workload.programs.get(backend.framework)


def _policies(target: str, backend: Backend, caches: Sequence[str] | None) -> tuple[str, ...]:
    if backend.cache is None:
        return ("none",)  # nothing to cache: measured once, under every choice of policies
    if caches:
        return tuple(c for c in dict.fromkeys(caches) if c in _supported(backend))
    if target == "full":
        return ("none", "cold", "warm")
    return ("none", "warm") if backend.compiled else ("none",)


def _supported(backend: Backend) -> tuple[str, ...]:
    """Firstlight's cache works with JAX only; `frozen` and `tiered` replace `jax.jit`."""
    if backend.cache != "jax":
        return ("none", "cold", "warm")
    ours = ("shared", "frozen", "tiered") if backend.adapter in _REPLACEMENTS else ("shared",)
    return ("none", "cold", "warm", *ours)


_POLICIES_OF_JAX = "firstlight.measure.adapters.jax_policies"
#: {adapter: {policy: the adapter used instead under this policy}}
_REPLACEMENTS = {
    "firstlight.measure.adapters.jax:JaxJit": {
        "frozen": f"{_POLICIES_OF_JAX}:JaxFrozen",
        "tiered": f"{_POLICIES_OF_JAX}:JaxTiered",
    }
}


def make_case(workload: Workload, size: str, backend: Backend, cache: str) -> Case:
    parameters = workload.sizes[size]
    program = _program(workload, parameters, backend)
    if program is None:
        raise SelectionError(f"workload {workload.name!r} has no program for {backend.name!r}.")
    return Case(
        id=f"{workload.name}[{size}]/{backend.name}/{cache}",
        workload=workload.name,
        size=size,
        backend=backend.name,
        cache=cache,
        title=workload.title,
        adapter=_REPLACEMENTS.get(backend.adapter, {}).get(cache, backend.adapter),
        program=program,
        reference=workload.reference,
        parameters=parameters.parameters,
        tolerance=parameters.tolerance or workload.tolerance,
        seed=workload.seed,
        compiled=backend.compiled,
        cache_kind=backend.cache,
        environment=workload.environment,
        file=workload.file,
        note=parameters.note,
    )


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # an import hook that fails, a half-imported module
        return False


def mark_missing(
    cases: Sequence[Case],
    backends: Mapping[str, Backend],
    installed: Callable[[str], bool] = _is_installed,
) -> list[Case]:
    """The same cases; those whose framework is not installed are marked as skipped."""
    missing: dict[str, str] = {}
    for backend in backends.values():
        if absent := [module for module in backend.requires if not installed(module)]:
            how = f" (pip install 'firstlight[{backend.extra}]')" if backend.extra else ""
            missing[backend.name] = f"{', '.join(absent)} is not installed{how}"
    return [replace(c, skipped=missing.get(c.backend)) for c in cases]
