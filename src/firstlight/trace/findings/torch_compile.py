"""What torch.compile spends time on: graphs that break, functions compiled again, long compiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from firstlight.present.quantities import listed, times
from firstlight.trace.findings import thresholds as limits
from firstlight.trace.read.model import Finding, SourceLine, Trace
from firstlight.trace.read.torch_regions import GraphBreak, Region, regions
from firstlight.trace.wording import short

#: One function is worth to be told only where compiling it takes so many times as long as importing
#: torch itself: Inductor takes seconds for anything at all. What torch imports meanwhile is not
#: counted.
COMPILE_TIMES_IMPORT = 5.0
COMPILE_SHARE = 0.5
#: Hints of torch that are for its developers, or for nobody.
_NO_REMEDY = (
    "Please report",
    "It may be possible to write Dynamo",
    "This is likely to be a Dynamo",
)


def graph_breaks(trace: Trace) -> Iterator[Finding]:
    """Lines of the user at which graphs break."""
    every = regions(trace)
    by_line: dict[Hashable, list[tuple[Region, GraphBreak]]] = defaultdict(list)
    for region in every:
        failed = region.failure if not region.beyond_limit else None
        for one in (*region.breaks, *((failed,) if failed else ())):
            place = one.place or region.place
            by_line[place and (place.file, place.line), one.reason].append((region, one))
    for found in by_line.values():
        yield _break_finding(found, every)


def _break_finding(found: Sequence[tuple[Region, GraphBreak]], every: Sequence[Region]) -> Finding:
    region, first = found[0]
    place = first.place or region.place
    skipped = [r.function for r, one in found if one is r.failure]
    functions = list(dict.fromkeys(r.function for r, _ in found))
    what = (
        f"torch.compile gives up on {listed(dict.fromkeys(skipped))}, which runs as it is"
        if skipped
        else f"The graph of {listed(functions)} breaks"
    )
    return Finding(
        kind="torch-graph-breaks",
        seconds=_seconds_of_breaks(found, every),
        title=f"{what}: {first.reason} ({short(place)}).",
        function=region.function,
        place=place,
        remedy=_break_remedy(first, place),
        evidence={
            "reason": first.reason,
            "explanation": first.explanation,
            "hints": list(first.hints),
            "breaks": len(found),
            "functions": functions,
            "skipped": sorted(set(skipped)),
        },
    )


def _seconds_of_breaks(
    found: Sequence[tuple[Region, GraphBreak]], every: Iterable[Region]
) -> float:
    """What was traced in vain up to them, and the compiles of what they cut off."""
    broken = {id(region) for region, _ in found}
    lines = {(p.file, p.function, p.line) for _, one in found for p in one.stack}
    # Called by what is compiled, and compiled by themselves since they could not be part of it.
    called = {(p.file, p.function) for _, one in found for p in one.stack[1:]}
    seconds = 0.0
    for region in every:
        file = region.place.file if region.place else ""
        cut_off = region.resumed_at is not None and (file, *region.resumed_at) in lines
        if cut_off or (file, region.name) in called:
            seconds += region.own_seconds
        elif id(region) in broken:
            seconds += min(region.restart_seconds or 0.0, region.own_seconds)
    return seconds


def _break_remedy(one: GraphBreak, place: SourceLine | None) -> str:
    hints = [hint for hint in one.hints if not hint.startswith(_NO_REMEDY)]
    torch_says = f" Torch says: {' '.join(hints[:2])}" if hints else ""
    return (
        f"Take what stands at {short(place)} out of the compiled function, or compile only the "
        "parts before and after it; torch.compile(…, fullgraph=True) then keeps it so, with an "
        f"error for every break.{torch_says}"
    )


def recompiles(trace: Trace) -> Iterator[Finding]:
    """Functions that are compiled again and again, by what differs."""
    by_function: dict[Hashable, list[Region]] = defaultdict(list)
    for region in regions(trace):
        if region.direction == "forward":
            by_function[region.identity].append(region)
    for compiles in by_function.values():
        again = _by_kind(compiles)
        for kind, chosen in again.items():
            # The rest after a graph break goes with its function, and not on its own.
            if _is_told(compiles, chosen) and _whole(compiles[0], by_function) is None:
                yield _recompile_finding(kind, chosen, _rests(compiles[0], kind, by_function))


def _by_kind(compiles: Iterable[Region]) -> dict[str, list[Region]]:
    found: dict[str, list[Region]] = defaultdict(list)
    for one in compiles:
        if one.recompile_kind is not None:
            found[one.recompile_kind].append(one)
    return found


def _whole(rest: Region, by_function: Mapping[Hashable, Sequence[Region]]) -> Region | None:
    """The function that a rest is of; None: it is none, or there are several of that name."""
    if rest.resumed_at is None or rest.place is None:
        return None
    found = [
        compiles[0]
        for compiles in by_function.values()
        if compiles[0].name == rest.function
        and compiles[0].place is not None
        and compiles[0].place.file == rest.place.file
    ]
    return found[0] if len(found) == 1 else None


def _rests(
    whole: Region, kind: str, by_function: Mapping[Hashable, Sequence[Region]]
) -> list[Region]:
    return [
        one
        for compiles in by_function.values()
        if _whole(compiles[0], by_function) is whole
        for one in _by_kind(compiles).get(kind, ())
    ]


def _is_told(compiles: Sequence[Region], again: Sequence[Region]) -> bool:
    """From a line that compiled it before, one is enough; from several lines it takes a habit."""
    if len(again) >= limits.RECOMPILES_AT_SEVERAL_LINES or any(r.beyond_limit for r in again):
        return True
    seen: set[tuple[int, SourceLine | None]] = set()
    count = 0
    for one in compiles:
        key = (one.process, one.user_site)
        count += key in seen and one.user_site is not None and any(one is r for r in again)
        seen.add(key)
    return count >= limits.RECOMPILES_AT_ONE_LINE


def _recompile_finding(kind: str, again: Sequence[Region], rests: Sequence[Region]) -> Finding:
    first = again[0]
    beyond = [one for one in again if one.beyond_limit]
    count = len(again) - len(beyond)
    compiled = f"is compiled again by torch {times(count)}" if count else "is compiled no more"
    limit = " Torch's limit is then reached: for what is new it runs as it is." if beyond else ""
    return Finding(
        kind="torch-recompiles",
        seconds=sum(one.own_seconds for one in (*again, *rests)),
        title=f"{first.readable} {compiled}: {first.recompile_detail}.{limit}",
        function=first.function,
        place=first.user_site or first.place,
        remedy=_recompile_remedy(kind, first),
        evidence={
            "reason": kind,
            "recompiles": count,
            "recompiles_after_breaks": len(rests),
            "guards": [one.recompile_detail for one in again[:20]],
            "defined_at": first.place and first.place.location,
            "limit_reached": bool(beyond),
        },
    )


def _recompile_remedy(kind: str, first: Region) -> str:
    where = short(first.user_site)
    if kind == "size":
        name, dimension = first.resized or ("", "dimension")
        mark = f"({name if name.isidentifier() else 'tensor'}, {dimension})"
        return (
            "Say before the first call that the size varies, with "
            f"torch._dynamo.mark_dynamic{mark} or torch.compile(…, dynamic=True); or pad to one "
            f"size before the call at {where}."
        )
    if kind == "global state":
        return (
            f"Call {first.function} in the same state each time (grad mode, autocast, default "
            "dtype, deterministic algorithms), or keep a compiled function for each."
        )
    if kind == "value":
        return (
            "A value of Python is part of the program: make it a tensor before the call at "
            f"{where} if it varies, or keep it out of the compiled function."
        )
    return f"Bring the tensors to one {kind} before the call at {where}."


def long_compiles(trace: Trace) -> Iterator[Finding]:
    """A function whose first compiles take most of all the time that torch compiles."""
    every = regions(trace)
    whole = sum(one.own_seconds for one in every)
    by_function: dict[Hashable, list[Region]] = defaultdict(list)
    for one in every:
        if one.recompile_kind is None:
            file = one.place.file if one.place else None
            by_function[one.process, one.function, file].append(one)
    for compiles in by_function.values():
        seconds, imported = sum(one.own_seconds for one in compiles), _import_seconds(trace)
        long = imported is not None and seconds >= COMPILE_TIMES_IMPORT * imported
        if long and seconds >= COMPILE_SHARE * whole:
            yield _compile_finding(compiles, seconds)


def _import_seconds(trace: Trace) -> float | None:
    """The longest import of torch itself; None: a recording that began after it."""
    packages = (package for process in trace.processes for package in process.imports)
    return max((p.seconds for p in packages if p.name == "torch"), default=None)


def _compile_finding(compiles: Sequence[Region], seconds: float) -> Finding:
    first = compiles[0]
    backend = sum(one.backend_seconds or 0.0 for one in compiles)
    misses = sum(one.cache_misses for one in compiles)
    cache = (
        " Keep TORCHINDUCTOR_CACHE_DIR in a folder that stays: the next start finds it there."
        if misses
        else ""
    )
    return Finding(
        kind="torch-compile-time",
        seconds=seconds,
        title=f"Compiling {first.function} by torch takes {seconds:.1f} s, {backend:.1f} s of them "
        "in the backend.",
        function=first.function,
        place=first.user_site if first.of_torch else first.place,
        remedy="Compile the block that is repeated (one layer of the model) instead of the whole: "
        f"its code is then traced and compiled once.{cache}",
        evidence={
            "regions": len(compiles),
            "backend_seconds": backend,
            "cache_misses": misses,
            "called_at": first.user_site and first.user_site.location,
        },
    )
