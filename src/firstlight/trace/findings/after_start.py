"""After the first result: unnecessary waits, and compiles in the middle of the run."""

from __future__ import annotations

from collections.abc import Iterator

from firstlight.present.quantities import duration, times
from firstlight.trace.findings import thresholds
from firstlight.trace.read.model import Compile, Finding, Process, Trace, Wait
from firstlight.trace.record.log_format import WORTH_ASKING_NS
from firstlight.trace.wording import readable, short, where_called, why_again


def synchronisation(trace: Trace) -> Iterator[Finding]:
    """Lines of the user that wait for a result repeatedly, and leave the device idle in between."""
    for process in trace.processes:
        run = sum(process.phases_seconds.values())
        for wait in process.waits:
            idle, whole = _idle_seconds(process, wait), wait.last_seconds - wait.first_seconds
            least = max(thresholds.WAIT_SHARE * whole, thresholds.WAIT_SHARE_OF_RUN * run)
            # Packages read results for a reason (filter_jit checks for errors).
            by_package = wait.site is not None and wait.site.package is not None
            repeated = wait.count >= thresholds.WAITS_AT_ONE_LINE and idle >= least
            if repeated and not by_package:
                yield _wait_finding(wait, idle)


def _idle_seconds(process: Process, wait: Wait) -> float:
    """The program's own work between the waits, during which the device could have computed.

    At most the time waited: the computation itself remains, wherever the wait is.
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
        title=f"The program waits for a result at {short(place)} {wait.count} times, for more than "
        f"{WORTH_ASKING_NS / 1e6:g} ms each: nothing is computed while it works in between.",
        function=place.function if place else None,
        place=place,
        remedy=f"Do not read results in every step at {short(place)} (float, print, np.asarray, "
        "block_until_ready): read them every hundredth step, or all at once after the loop with "
        "jax.device_get. JAX then computes while the program prepares the next step.",
        evidence={"waits": wait.count, "mean_seconds": mean, "waited_seconds": wait.seconds},
    )


def late_stalls(trace: Trace) -> Iterator[Finding]:
    """Functions that are compiled again long after the first result."""
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
            remedy="Before the work begins, call it once for each combination of shapes, dtypes "
            "and settings that will come, or make the calls alike. In CI, "
            "`--forbid-compile-after` checks that.",
            evidence={
                "at_seconds": [one.begin_seconds for one in compiles],
                "results_before": [one.results_before for one in compiles],
                "differences": [why_again(one) for one in compiles[:20]],
            },
        )


def _late_in(trace: Trace, process: Process) -> Iterator[Compile]:
    """Recompiles of a process long after its first result and after any other compile."""
    first = process.first_result_seconds
    if first is None:
        return
    start = first - process.starts_at_seconds
    last_end, last_results = 0.0, 0
    compiles = [c for f in trace.functions for c in f.compiles if c.process == process.number]
    for one in sorted(compiles, key=lambda c: c.begin_seconds):
        # Only a whole process has a start to compare with.
        late = process.whole and one.begin_seconds - first >= thresholds.LATE_SHARE * start
        late &= one.begin_seconds - last_end >= thresholds.QUIET_SHARE * start
        results = one.results_before or last_results
        late |= results - last_results >= thresholds.LATE_RESULTS
        if late and one.recompile_reason is not None:
            yield one
        last_end, last_results = max(last_end, one.end_seconds), results
