"""Several processes of one program that compile the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from firstlight.present.quantities import counted
from firstlight.trace.findings import thresholds as limits
from firstlight.trace.findings.costs import start_seconds
from firstlight.trace.read.model import Compile, Finding, Function, Trace


def same_programs(trace: Trace) -> Iterator[Finding]:
    """One finding for all programs that more than one process compiled."""
    doubled: list[tuple[Function, float]] = []
    processes: set[int] = set()
    programs = 0
    for function in trace.functions:
        for compiles in _by_program(function).values():
            by_process = {one.process: _seconds(one) for one in compiles}
            if len(by_process) > 1:
                programs += 1
                processes |= set(by_process)
                # One of them had to: the longest is not counted.
                doubled.append((function, sum(by_process.values()) - max(by_process.values())))
    seconds = sum(cost for _, cost in doubled)
    if doubled and seconds >= limits.SAME_PROGRAM_SHARE * start_seconds(trace):
        worst = max(doubled, key=lambda pair: pair[1])[0]
        yield Finding(
            kind="ranks-compile-the-same",
            seconds=seconds,
            title=f"{len(processes)} processes compiled the same {counted(programs, 'program')}.",
            function=worst.name,
            place=worst.place,
            remedy="Give them one persistent cache (jax_compilation_cache_dir on a disk that all "
            "see, jax_persistent_cache_min_compile_time_secs 0), and let one process run first: "
            "those that start together find nothing in it.",
            evidence={"processes": sorted(processes), "programs": programs},
        )


def _by_program(function: Function) -> dict[object, list[Compile]]:
    """Compiles that were not found in a cache, by what they were compiled for."""
    found: dict[object, list[Compile]] = defaultdict(list)
    for one in function.compiles:
        if one.compiled and one.signature is not None and not one.found_in_cache:
            signature = one.signature
            static = tuple(sorted(signature.static.items()))
            found[signature.arguments, signature.tree, static].append(one)
    return found


def _seconds(one: Compile) -> float:
    return one.stage_seconds.get("compile") or 0.0
