"""The persistent cache: off, on and useless, or new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from firstlight.present.quantities import counted, duration, listed
from firstlight.trace.findings import thresholds as limits
from firstlight.trace.findings.costs import cost, is_part_of_start
from firstlight.trace.read import phases
from firstlight.trace.read.model import (
    CacheStatus,
    Compile,
    Finding,
    Function,
    MissReason,
    Trace,
)

_Pair = tuple[Function, Compile]


def cache_findings(trace: Trace) -> Iterator[Finding]:
    """At most one finding for each way in which the cache did not help."""
    pairs = [(f, c) for f in trace.functions for c in f.compiles if c.compiled and c.cache]
    yield from _off(trace, [p for p in pairs if _status(p) == CacheStatus.OFF])
    missed = [p for p in pairs if _status(p) == CacheStatus.MISS]
    hits = [p for p in pairs if _status(p) == CacheStatus.HIT]
    for_reason = {
        reason: [p for p in missed if p[1].cache and p[1].cache.reason == reason]
        for reason in MissReason
    }
    yield from _below_threshold(trace, for_reason[MissReason.BELOW_THRESHOLD])
    yield from _callbacks(for_reason[MissReason.CALLBACKS])
    written = {_program(p) for p in pairs if p[1].cache and p[1].cache.written}
    yield from _rank(trace, [p for p in for_reason[MissReason.RANK] if _program(p) not in written])
    yield from _other_key(trace, for_reason[MissReason.OTHER_KEY], hits)
    yield from _cold(trace, for_reason[MissReason.NO_ENTRY])


def _program(pair: _Pair) -> object:
    """What makes two compiles of several processes ones of the same program."""
    function, one = pair
    shapes = one.signature.arguments if one.signature else None
    return function.name, function.place, shapes


def _status(pair: _Pair) -> CacheStatus | None:
    return pair[1].cache.status if pair[1].cache else None


def _off(trace: Trace, pairs: Sequence[_Pair]) -> Iterator[Finding]:
    if pairs and _is_worth(trace, pairs, limits.CACHE_OFF_SHARE):
        programs = "1 program is" if len(pairs) == 1 else f"{len(pairs)} programs are"
        left, evidence = _left_with_cache(trace)
        found = _finding(
            "cache-off",
            pairs,
            f"There is no persistent cache: {programs} compiled at every start.",
            "Set jax_compilation_cache_dir (or JAX_COMPILATION_CACHE_DIR) to a folder that stays, "
            "and jax_persistent_cache_min_compile_time_secs to 0, or short compiles are not kept. "
            f"{left}",
            **evidence,
        )
        # No line of anybody's is at fault, and nothing that is particular to the program.
        yield replace(found, function=None, place=None, apart=True)


def _left_with_cache(trace: Trace) -> tuple[str, dict[str, float]]:
    """What a start with a warm cache would still take: all that is not XLA's compiling."""
    leading = phases.leading(trace)
    first = leading.first_result_seconds if leading else None
    if leading is None or first is None or not leading.whole:
        return "Tracing and lowering are left.", {}
    left = first - phases.compiling_waited_for(leading, first)
    told = (
        f"From the second start on the first result then comes after about {duration(left)} "
        f"instead of {duration(first)}: imports, tracing and lowering are left."
    )
    return told, {"first_result_with_cache_seconds": left}


def _below_threshold(trace: Trace, pairs: Sequence[_Pair]) -> Iterator[Finding]:
    if pairs and _is_worth(trace, pairs, limits.CACHE_USELESS_SHARE):
        least = pairs[0][1].cache_settings.get("cache_least_seconds")
        yield _finding(
            "cache-below-threshold",
            pairs,
            f"The persistent cache keeps none of {counted(len(pairs), 'program')}: each took less "
            f"than {least} s to compile.",
            "Set jax_persistent_cache_min_compile_time_secs to 0 "
            "(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0).",
        )


def _callbacks(pairs: Sequence[_Pair]) -> Iterator[Finding]:
    if pairs:
        yield _finding(
            "cache-callbacks",
            pairs,
            f"{_names(pairs)} cannot be kept in the persistent cache: it calls back into Python.",
            "Take jax.debug.print, pure_callback and io_callback out of it (return the values and "
            "print them outside), or only have them in when you look for a fault.",
        )


def _rank(trace: Trace, pairs: Sequence[_Pair]) -> Iterator[Finding]:
    if pairs and _is_worth(trace, pairs, limits.CACHE_USELESS_SHARE):
        yield _finding(
            "cache-not-written-by-rank",
            pairs,
            f"{_were(pairs)} compiled by processes that write nothing to the cache: JAX lets only "
            "process 0 write.",
            "Run what a single process needs for itself (preparation, evaluation) in a program "
            "without jax.distributed, where the cache works, or keep its executable "
            "(jax.experimental.serialize_executable).",
        )


def _other_key(trace: Trace, pairs: Sequence[_Pair], hits: Sequence[_Pair]) -> Iterator[Finding]:
    if not pairs or not _is_worth(trace, pairs, limits.CACHE_USELESS_SHARE):
        return
    in_key = pairs[0][1].cache_settings.get("cache_in_key")
    path = (
        "The path of the folder is part of the key: if the cache was moved, copied or mounted "
        "elsewhere, set jax_persistent_cache_enable_xla_caches to 'none' where it is made and "
        "where it is used. Else the "
        if in_key not in ("none", None)
        else "The "
    )
    everything = not hits
    yield _finding(
        "cache-key-changed",
        pairs,
        f"The cache holds entries of {_names(pairs)}, and none fits"
        + (": not one program of this run was found in it." if everything else "."),
        f"{path}version of JAX, XLA_FLAGS, the kind of device, or the program itself changed; "
        "logger jax._src.cache_key at DEBUG shows each part of a key.",
        all_programs=everything,
    )


def _cold(trace: Trace, pairs: Sequence[_Pair]) -> Iterator[Finding]:
    if pairs and _is_worth(trace, pairs, limits.CACHE_COLD_SHARE):
        yield _finding(
            "cache-cold",
            pairs,
            f"{_were(pairs)} not in the persistent cache yet, and can be found there now.",
            "The next start does not pay this. Where every start is a first one (containers, CI), "
            "keep the folder of the cache between them, or ship it with the program.",
        )


def _finding(
    kind: str, pairs: Sequence[_Pair], title: str, remedy: str, **evidence: object
) -> Finding:
    worst = max(pairs, key=lambda pair: _one(pair[1]))[0]
    return Finding(
        kind=kind,
        **cost((one for _, one in pairs), _one),
        title=title,
        function=worst.name,
        place=worst.place,
        remedy=remedy,
        evidence={
            "programs": len(pairs),
            "functions": sorted({function.name for function, _ in pairs})[:20],
            **evidence,
        },
    )


def _were(pairs: Sequence[_Pair]) -> str:
    return "1 program was" if len(pairs) == 1 else f"{len(pairs)} programs were"


def _names(pairs: Sequence[_Pair]) -> str:
    by_cost = sorted(pairs, key=lambda pair: -_one(pair[1]))
    return listed(dict.fromkeys(function.name for function, _ in by_cost), 3)


def _one(compiled: Compile) -> float:
    return compiled.stage_seconds.get("compile") or 0.0


def _is_worth(trace: Trace, pairs: Sequence[_Pair], share: float) -> bool:
    spent = sum(_one(one) for _, one in pairs)
    return is_part_of_start(trace, (one for _, one in pairs), spent, share)
