"""The persistent cache: off, on but useless, new, or not shared between processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from firstlight.present.quantities import counted, duration, listed
from firstlight.trace.findings import thresholds
from firstlight.trace.findings.costs import cost, is_part_of_start, start_seconds, xla_seconds
from firstlight.trace.read import phases
from firstlight.trace.read.model import CacheStatus, Compile, Finding, Function, MissReason, Trace

_Pair = tuple[Function, Compile]


#: Kind, title and remedy of a finding by the reason of its misses; `_missed` has their values.
_KINDS = {
    MissReason.BELOW_THRESHOLD: "cache-below-threshold",
    MissReason.CALLBACKS: "cache-callbacks",
    MissReason.RANK: "cache-not-written-by-rank",
    MissReason.OTHER_KEY: "cache-key-changed",
    MissReason.NO_ENTRY: "cache-cold",
}
_TITLES = {
    MissReason.BELOW_THRESHOLD: "The persistent cache keeps none of {programs}: each took less "
    "than {least} s to compile.",
    MissReason.CALLBACKS: "The persistent cache cannot keep {names}, because of callbacks into "
    "Python.",
    MissReason.RANK: "{were} compiled by processes that write nothing to the cache: JAX lets only "
    "process 0 write.",
    MissReason.OTHER_KEY: "The cache has entries for {names}, but none fits{everything}.",
    MissReason.NO_ENTRY: "{were} not in the persistent cache yet, and can be found there at the "
    "next start.",
}
_REMEDIES = {
    MissReason.BELOW_THRESHOLD: "Start the program with `firstlight exec`, which keeps everything, "
    "or set jax_persistent_cache_min_compile_time_secs to 0 "
    "(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0).",
    MissReason.CALLBACKS: "Remove jax.debug.print, pure_callback and io_callback (return the "
    "values and print them outside), or use them only while debugging: `firstlight exec` then "
    "keeps it. From 0.11 on, JAX keeps such programs.",
    MissReason.RANK: "Run what only one process needs (preparation, evaluation) in a program "
    "without jax.distributed, where the cache works, or freeze it (firstlight.warmstart.freeze).",
    MissReason.OTHER_KEY: "{path}version of JAX, XLA_FLAGS, the kind of device, or the program "
    "itself changed; under `firstlight exec`, `firstlight cache explain FUNCTION` says which.",
    MissReason.NO_ENTRY: "The next start does not pay this. If every start is a first one "
    "(containers, CI), write a manifest once (`firstlight warm record`), and fill the cache from "
    "it when you build the image (`firstlight warm build`).",
}
_MOVED = (
    "The path of the folder is part of the key: if the cache was moved, copied or mounted "
    "elsewhere, use `firstlight exec`, whose keys contain no path, or set "
    "jax_persistent_cache_enable_xla_caches to 'none' where it is made and where it is used. "
    "Otherwise the "
)


def cache_findings(trace: Trace) -> Iterator[Finding]:
    """At most one finding per reason why the cache did not help."""
    off: list[_Pair] = []
    missed: dict[MissReason | None, list[_Pair]] = defaultdict(list)
    hits, written = 0, set()
    for pair in ((f, c) for f in trace.functions for c in f.compiles if c.compiled):
        cache = pair[1].cache
        if cache is None:
            continue
        if cache.status == CacheStatus.OFF:
            off.append(pair)
        elif cache.status == CacheStatus.MISS:
            missed[cache.reason].append(pair)
        hits += cache.status == CacheStatus.HIT
        if cache.written:
            written.add(_program(pair))
    if off and _is_worth(trace, off, thresholds.CACHE_OFF_SHARE):
        yield _off(trace, off)
    missed[MissReason.RANK] = [p for p in missed[MissReason.RANK] if _program(p) not in written]
    for reason in _KINDS:
        is_cold, pairs = reason is MissReason.NO_ENTRY, missed[reason]
        share = thresholds.CACHE_COLD_SHARE if is_cold else thresholds.CACHE_USELESS_SHARE
        if pairs and (reason is MissReason.CALLBACKS or _is_worth(trace, pairs, share)):
            yield _missed(reason, pairs, hits)


def _program(pair: _Pair) -> object:
    """Equal for compiles of the same program in several processes."""
    function, one = pair
    return function.name, function.place, one.signature and one.signature.arguments


def _missed(reason: MissReason, pairs: Sequence[_Pair], hits: int) -> Finding:
    settings = pairs[0][1].cache_settings
    by_cost = sorted(pairs, key=lambda pair: -xla_seconds(pair[1]))
    words = {
        "programs": counted(len(pairs), "program"),
        "were": "1 program was" if len(pairs) == 1 else f"{len(pairs)} programs were",
        "names": listed(dict.fromkeys(function.name for function, _ in by_cost), 3),
        "least": settings.get("cache_least_seconds"),
        "everything": "" if hits else ": no program of this run was found in it",
        "path": _MOVED if settings.get("cache_in_key") not in ("none", None) else "The ",
    }
    evidence = {"all_programs": not hits} if reason is MissReason.OTHER_KEY else {}
    title, remedy = (texts[reason].format(**words) for texts in (_TITLES, _REMEDIES))
    return _finding(_KINDS[reason], pairs, title, remedy, **evidence)


def _off(trace: Trace, pairs: Sequence[_Pair]) -> Finding:
    programs = "1 program is" if len(pairs) == 1 else f"{len(pairs)} programs are"
    leading = phases.leading(trace)
    first = leading.first_result_seconds if leading and leading.whole else None
    left, evidence = "Tracing and lowering remain.", {}
    if leading is not None and first is not None:
        # Everything but XLA's compiling.
        seconds = first - phases.compiling_waited_for(leading, first)
        evidence = {"first_result_with_cache_seconds": seconds}
        left = (
            f"From the second start on, the first result then comes after about "
            f"{duration(seconds)} instead of {duration(first)}: imports, tracing and lowering "
            "remain, which firstlight.warmstart.freeze saves too."
        )
    found = _finding(
        "cache-off",
        pairs,
        f"There is no persistent cache: {programs} compiled at every start.",
        "Start the program with `firstlight exec`, which keeps everything that it compiles. Or set "
        "jax_compilation_cache_dir (JAX_COMPILATION_CACHE_DIR) to a permanent folder, and "
        f"jax_persistent_cache_min_compile_time_secs to 0 to keep short compiles too. {left}",
        **evidence,
    )
    # No line and no function of the program is at fault.
    return replace(found, function=None, place=None, apart=True)


def _finding(
    kind: str, pairs: Sequence[_Pair], title: str, remedy: str, **evidence: object
) -> Finding:
    worst = max(pairs, key=lambda pair: xla_seconds(pair[1]))[0]
    functions = sorted({function.name for function, _ in pairs})[:20]
    return Finding(
        kind=kind,
        **cost((one for _, one in pairs), xla_seconds),
        title=title,
        function=worst.name,
        place=worst.place,
        remedy=remedy,
        evidence={"programs": len(pairs), "functions": functions, **evidence},
    )


def _is_worth(trace: Trace, pairs: Sequence[_Pair], share: float) -> bool:
    compiles = [one for _, one in pairs]
    return is_part_of_start(trace, compiles, sum(map(xla_seconds, compiles)), share)


def same_programs(trace: Trace) -> Iterator[Finding]:
    """One finding for all programs that more than one process compiled."""
    doubled: list[tuple[float, Function]] = []
    processes: set[int] = set()
    for function in trace.functions:
        programs: dict[object, dict[int, float]] = defaultdict(dict)
        for one in function.compiles:
            if one.compiled and one.signature is not None and not one.found_in_cache:
                static = tuple(sorted(one.signature.static.items()))
                program = one.signature.arguments, one.signature.tree, static
                programs[program][one.process] = xla_seconds(one)
        for by_process in programs.values():
            if len(by_process) > 1:
                processes |= set(by_process)
                # One process has to compile it: the longest time is not counted.
                doubled.append((sum(by_process.values()) - max(by_process.values()), function))
    seconds = sum(spent for spent, _ in doubled)
    if doubled and seconds >= thresholds.SAME_PROGRAM_SHARE * start_seconds(trace):
        worst = max(doubled, key=lambda pair: pair[0])[1]
        yield Finding(
            kind="ranks-compile-the-same",
            seconds=seconds,
            title=f"{len(processes)} processes compiled the same "
            f"{counted(len(doubled), 'program')}.",
            function=worst.name,
            place=worst.place,
            remedy="Start them with `firstlight exec --cache FOLDER` on a shared disk: one "
            "compiles, the others wait for it. JAX's own cache helps only if one process runs "
            "first: those that start together find nothing in it.",
            evidence={"processes": sorted(processes), "programs": len(doubled)},
        )
