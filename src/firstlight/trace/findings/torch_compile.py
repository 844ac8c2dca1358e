"""Findings of torch.compile: graph breaks, recompiles, long compiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from firstlight.present.quantities import listed, times
from firstlight.trace.findings import thresholds
from firstlight.trace.read.model import Finding, SourceLine, Trace
from firstlight.trace.read.torch_regions import GraphBreak, Region, regions
from firstlight.trace.wording import short

#: Hints of torch that do not help its users.
_NO_REMEDY = (
    "Please report",
    "It may be possible to write Dynamo",
    "This is likely to be a Dynamo",
)
#: By kind of recompile; `_recompile_finding` has their values.
_REMEDIES = {
    "size": "Before the first call, declare that the size varies, with "
    "torch._dynamo.mark_dynamic({tensor}, {dimension}) or torch.compile(…, dynamic=True); or pad "
    "to one size before the call at {where}.",
    "global state": "Call {function} in the same state each time (grad mode, autocast, default "
    "dtype, deterministic algorithms), or keep a compiled function for each.",
    "value": "A Python value is part of the program: if it varies, make it a tensor before the "
    "call at {where}, or keep it out of the compiled function.",
}
_OTHER_REMEDY = "Give the tensors the same {kind} before the call at {where}."
_Functions = Mapping[Hashable, Sequence[Region]]


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
    where = short(place := first.place or region.place)
    skipped = {r.function: None for r, one in found if one is r.failure}
    functions = list(dict.fromkeys(r.function for r, _ in found))
    what = (
        f"torch.compile gives up on {listed(skipped)}, which runs uncompiled"
        if skipped
        else f"The graph of {listed(functions)} breaks"
    )
    hints = [hint for hint in first.hints if not hint.startswith(_NO_REMEDY)]
    torch_says = f" Torch says: {' '.join(hints[:2])}" if hints else ""
    return Finding(
        kind="torch-graph-breaks",
        seconds=_seconds_of_breaks(found, every),
        title=f"{what}: {first.reason} ({where}).",
        function=region.function,
        place=place,
        remedy=f"Move the code at {where} out of the compiled function, or compile only the parts "
        "before and after it; torch.compile(…, fullgraph=True) then raises an error for every "
        f"break.{torch_says}",
        evidence={
            "reason": first.reason,
            "explanation": first.explanation,
            "hints": list(first.hints),
            "breaks": len(found),
            "functions": functions,
            "skipped": sorted(skipped),
        },
    )


def _seconds_of_breaks(
    found: Sequence[tuple[Region, GraphBreak]], every: Sequence[Region]
) -> float:
    """The discarded tracing up to the breaks, and the compiles of what they cut off."""
    broken = {id(region) for region, _ in found}
    lines = {(p.file, p.function, p.line) for _, one in found for p in one.stack}
    # Called by a compiled function, and compiled separately because they could not be part of it.
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


def recompiles(trace: Trace) -> Iterator[Finding]:
    """Functions that are compiled repeatedly, by what differs."""
    by_function: dict[Hashable, list[Region]] = defaultdict(list)
    for region in regions(trace):
        if region.direction == "forward":
            by_function[region.identity].append(region)
    for compiles in by_function.values():
        if _whole(compiles[0], by_function) is not None:
            continue  # the rest after a graph break is reported with its function
        for kind in dict.fromkeys(one.recompile_kind for one in compiles if one.recompile_kind):
            again = [one for one in compiles if one.recompile_kind == kind]
            if _is_reported(compiles, again):
                rests = (
                    r for r in by_function.values() if _whole(r[0], by_function) is compiles[0]
                )
                after = [one for rest in rests for one in rest if one.recompile_kind == kind]
                yield _recompile_finding(kind, again, after)


def _whole(rest: Region, by_function: _Functions) -> Region | None:
    """The function whose rest after a break this is; None if it is no rest or not unique."""
    if rest.resumed_at is None or rest.place is None:
        return None
    firsts = [compiles[0] for compiles in by_function.values()]
    named = [one for one in firsts if one.name == rest.function and one.place is not None]
    found = [one for one in named if one.place and one.place.file == rest.place.file]
    return found[0] if len(found) == 1 else None


def _is_reported(compiles: Sequence[Region], again: Sequence[Region]) -> bool:
    """One recompile is enough from a line that compiled it before; otherwise it takes several."""
    many = len(again) >= thresholds.RECOMPILES_AT_SEVERAL_LINES
    if many or any(one.beyond_limit for one in again):
        return True
    seen: set[tuple[int, SourceLine | None]] = set()
    count = 0
    for one in compiles:
        key = (one.process, one.user_site)
        count += key in seen and one.user_site is not None and any(one is r for r in again)
        seen.add(key)
    return count >= thresholds.RECOMPILES_AT_ONE_LINE


def _recompile_finding(kind: str, again: Sequence[Region], rests: Sequence[Region]) -> Finding:
    first = again[0]
    name, dimension = first.resized or ("", "dimension")
    count = sum(not one.beyond_limit for one in again)
    compiled = f"is compiled again by torch {times(count)}" if count else "is no longer compiled"
    beyond = count < len(again)
    limit = " Torch's recompile limit is reached: for new inputs it runs uncompiled."
    return Finding(
        kind="torch-recompiles",
        seconds=sum(one.own_seconds for one in (*again, *rests)),
        title=f"{first.readable} {compiled}: {first.recompile_detail}.{limit * beyond}",
        function=first.function,
        place=first.user_site or first.place,
        remedy=_REMEDIES.get(kind, _OTHER_REMEDY).format(
            kind=kind,
            tensor=name if name.isidentifier() else "tensor",
            dimension=dimension,
            function=first.function,
            where=short(first.user_site),
        ),
        evidence={
            "reason": kind,
            "recompiles": count,
            "recompiles_after_breaks": len(rests),
            "guards": [one.recompile_detail for one in again[:20]],
            "defined_at": first.place and first.place.location,
            "limit_reached": beyond,
        },
    )


def long_compiles(trace: Trace) -> Iterator[Finding]:
    """A function whose first compiles take most of torch's compile time."""
    packages = (package for process in trace.processes for package in process.imports)
    imported = max((p.seconds for p in packages if p.name == "torch"), default=None)
    if imported is None:
        return  # the recording began after torch was imported
    every = regions(trace)
    share = thresholds.TORCH_COMPILE_SHARE * sum(one.own_seconds for one in every)
    by_function: dict[Hashable, list[Region]] = defaultdict(list)
    for one in every:
        if one.recompile_kind is None:
            file = one.place.file if one.place else None
            by_function[one.process, one.function, file].append(one)
    for compiles in by_function.values():
        first, seconds = compiles[0], sum(one.own_seconds for one in compiles)
        if seconds < max(thresholds.TORCH_COMPILE_TIMES_IMPORT * imported, share):
            continue
        backend = sum(one.backend_seconds or 0.0 for one in compiles)
        misses = sum(one.cache_misses for one in compiles)
        keep = "Set TORCHINDUCTOR_CACHE_DIR to a permanent folder, where the next start finds it."
        yield Finding(
            kind="torch-compile-time",
            seconds=seconds,
            title=f"Compiling {first.function} with torch takes {seconds:.1f} s, {backend:.1f} s "
            "of it in the backend.",
            function=first.function,
            place=first.user_site if first.of_torch else first.place,
            remedy="Compile the repeated block (one layer of the model) instead of the whole: its "
            f"code is then traced and compiled once.{f' {keep}' if misses else ''}",
            evidence={
                "regions": len(compiles),
                "backend_seconds": backend,
                "cache_misses": misses,
                "called_at": first.user_site and first.user_site.location,
            },
        )
