"""After the first result: waits that need not be, and compiles in the middle of the work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from firstlight.trace.findings import thresholds as limits
from firstlight.trace.findings.wording import (
    location,
    readable,
    short,
    times,
    where_called,
)
from firstlight.trace.model import Compile, Finding, Function, Process, Trace, Wait
from firstlight.trace.waits import WORTH_ASKING_NS
from firstlight.trace.wording import seconds


def synchronisation(trace: Trace) -> Iterator[Finding]:
    """Lines that wait for a result again and again."""
    for process in trace.processes:
        for wait in process.waits:
            if _is_habit(wait):
                yield _wait_finding(wait)


def _is_habit(wait: Wait) -> bool:
    whole = wait.last_seconds - wait.first_seconds
    return (
        wait.count >= limits.WAITS_AT_ONE_LINE
        and wait.seconds >= limits.WAIT_SECONDS
        and wait.seconds >= limits.WAIT_SHARE * whole
    )


def _wait_finding(wait: Wait) -> Finding:
    place = wait.user_site or wait.site
    package = wait.site.package if wait.site and wait.site != place else None
    by = f" (by {package}, {short(wait.site)})" if package else ""
    return Finding(
        kind="synchronisation",
        seconds=wait.seconds,
        title=f"The program waits for a result at {short(place)}{by}, {wait.count} times for more "
        f"than {WORTH_ASKING_NS / 1e6:g} ms.",
        function=place.function if place else None,
        location=location(place),
        remedy=_wait_remedy(wait, package),
        evidence={
            "waits": wait.count,
            "mean_seconds": wait.seconds / wait.count,
            "read_at": location(wait.site),
        },
    )


def _wait_remedy(wait: Wait, package: str | None) -> str:
    meanwhile = "JAX can then prepare the next step while this one runs."
    if package:
        return (
            f"{package} reads the results, at {short(wait.site)}, not your line: look for what it "
            "offers to read fewer of them (a progress bar that can be off, metrics or logging "
            f"every hundredth step). {meanwhile}"
        )
    return (
        f"Do not read results in every step at {short(wait.user_site or wait.site)} (float, print, "
        "np.asarray, block_until_ready): keep them as arrays and read them every hundredth step, "
        f"or after the loop all at once with jax.device_get. {meanwhile}"
    )


def late_stalls(trace: Trace) -> Iterator[Finding]:
    """Functions that are compiled again when the work has long begun."""
    late: dict[int, list[Compile]] = defaultdict(list)
    functions: dict[int, Function] = {}
    for process in trace.processes:
        for function, one in _late_in(trace, process):
            late[id(function)].append(one)
            functions[id(function)] = function
    for which, compiles in late.items():
        yield _late_finding(functions[which], compiles)


def _late_in(trace: Trace, process: Process) -> Iterator[tuple[Function, Compile]]:
    first = process.first_result_seconds
    if first is None:
        return
    pairs = [(f, c) for f in trace.functions for c in f.compiles if c.process == process.number]
    start = first - process.starts_at_seconds  # a recording within a run has none of its own
    last_end, last_results = 0.0, 0
    for function, one in sorted(pairs, key=lambda pair: pair[1].begin_seconds):
        late = process.whole and one.begin_seconds - first >= limits.LATE_SHARE * start
        late &= one.begin_seconds - last_end >= limits.QUIET_SHARE * start
        results = one.results_before or last_results
        late |= results - last_results >= limits.LATE_RESULTS
        if late and one.recompile_reason is not None and not function.library:
            yield function, one
        last_end, last_results = max(last_end, one.end_seconds), results


def _late_finding(function: Function, compiles: list[Compile]) -> Finding:
    first = compiles[0]
    after = f", after {first.results_before} results" if first.results_before else ""
    return Finding(
        kind="late-stall",
        seconds=sum(c.seconds for c in compiles),
        title=f"{readable(function)} is compiled again in the middle of the run, "
        f"{times(len(compiles))} (at {seconds(first.begin_seconds)}{after}): "
        f"{first.recompile_detail}.",
        function=function.name,
        location=location(where_called(first) or function.place),
        remedy="Call it with everything that will come (all shapes, dtypes, settings) once before "
        "the work begins, or make the calls alike; `--forbid-compile-after` keeps it so.",
        evidence={
            "at_seconds": [one.begin_seconds for one in compiles],
            "results_before": [one.results_before for one in compiles],
            "differences": [one.recompile_detail for one in compiles[:20]],
        },
    )
