"""After the first result: waits that need not be, and compiles in the middle of the work."""

from __future__ import annotations

from collections.abc import Iterator

from firstlight.present.quantities import duration, times
from firstlight.trace.findings import thresholds
from firstlight.trace.read.model import Compile, Finding, Process, Trace, Wait
from firstlight.trace.record.log_format import WORTH_ASKING_NS
from firstlight.trace.wording import readable, short, where_called, why_again


def synchronisation(trace: Trace) -> Iterator[Finding]:
    """Lines of the user that wait for a result again and again, and work only when it is there."""
    for process in trace.processes:
        run = sum(process.phases_seconds.values())
        for wait in process.waits:
            idle, whole = _idle_seconds(process, wait), wait.last_seconds - wait.first_seconds
            least = max(thresholds.WAIT_SHARE * whole, thresholds.WAIT_SHARE_OF_RUN * run)
            # A package knows what it reads it for (filter_jit looks for errors).
            by_package = wait.site is not None and wait.site.package is not None
            habit = wait.count >= thresholds.WAITS_AT_ONE_LINE and idle >= least
            if habit and not by_package:
                yield _wait_finding(wait, idle)


def _idle_seconds(process: Process, wait: Wait) -> float:
    """Of the program's own work between its waits, what the device could have computed under.

    No more than it was waited for: a wait that is the computation itself stays, wherever it is.
    """
    between = (
        min(span.end_seconds, wait.last_seconds) - max(span.begin_seconds, wait.first_seconds)
        for span in process.timeline
        if span.kind == "rest"
    )
    return min(wait.seconds, sum(seconds for seconds in between if seconds > 0))


def _wait_finding(wait: Wait, idle: float) -> Finding:
    place = wait.user_site or wait.site
    mean = wait.seconds / wait.count
    return Finding(
        kind="synchronisation",
        seconds=idle,
        title=f"The program waits for a result at {short(place)}, {wait.count} times for more than "
        f"{WORTH_ASKING_NS / 1e6:g} ms, and works on only then: meanwhile nothing is computed.",
        function=place.function if place else None,
        place=place,
        remedy=f"Do not read results in every step at {short(place)} (float, print, np.asarray, "
        "block_until_ready): keep them as arrays and read them every hundredth step, or after the "
        "loop all at once with jax.device_get. JAX then computes while the program prepares the "
        "next step.",
        evidence={"waits": wait.count, "mean_seconds": mean, "waited_seconds": wait.seconds},
    )


def late_stalls(trace: Trace) -> Iterator[Finding]:
    """Functions that are compiled again when the work has long begun."""
    late = {id(one) for process in trace.processes for one in _late_in(trace, process)}
    for function in trace.functions:
        compiles = [] if function.library else [c for c in function.compiles if id(c) in late]
        if not compiles:
            continue
        compiles.sort(key=lambda c: (c.process, c.begin_seconds))
        first = compiles[0]
        after = f", after {first.results_before} results" if first.results_before else ""
        yield Finding(
            kind="late-stall",
            seconds=sum(c.seconds for c in compiles),
            title=f"{readable(function)} is compiled again in the middle of the run, "
            f"{times(len(compiles))} (at {duration(first.begin_seconds)}{after}): "
            f"{why_again(first)}.",
            function=function.name,
            place=where_called(first) or function.place,
            remedy="Call it with everything that will come (all shapes, dtypes, settings) once "
            "before the work begins, or make the calls alike; `--forbid-compile-after` keeps it "
            "so.",
            evidence={
                "at_seconds": [one.begin_seconds for one in compiles],
                "results_before": [one.results_before for one in compiles],
                "differences": [why_again(one) for one in compiles[:20]],
            },
        )


def _late_in(trace: Trace, process: Process) -> Iterator[Compile]:
    """Recompiles of a process long after its first result, and after any other compile."""
    first = process.first_result_seconds
    if first is None:
        return
    start = first - process.starts_at_seconds  # a recording within a run has none of its own
    last_end, last_results = 0.0, 0
    every = [c for f in trace.functions for c in f.compiles if c.process == process.number]
    for one in sorted(every, key=lambda c: c.begin_seconds):
        late = process.whole and one.begin_seconds - first >= thresholds.LATE_SHARE * start
        late &= one.begin_seconds - last_end >= thresholds.QUIET_SHARE * start
        results = one.results_before or last_results
        late |= results - last_results >= thresholds.LATE_RESULTS
        if late and one.recompile_reason is not None:
            yield one
        last_end, last_results = max(last_end, one.end_seconds), results
