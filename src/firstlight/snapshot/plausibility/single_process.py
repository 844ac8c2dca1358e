"""What one process cannot have done, by what the instrument does and what was planned.

The instrument times at least `warm_calls_least` calls and all batches, and stops earlier only when
its patience ends: after ten times the time that was meant for them, or near half of the time limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from firstlight.records import Case, ColdStart, Correctness, Sample, Settings, WarmCalls

#: Seconds: each time is rounded to a nanosecond, and a cold start has ten of them.
_ROUNDING = 1e-7
#: Share of its patience after which the instrument may have stopped: it looks between two calls.
_PATIENCE = 0.9
#: Seconds: an interpreter maps its libraries and imports its own modules before anything of ours.
_MIN_START = 1e-3


def impossible(case: Case, sample: Sample, settings: Settings) -> Iterator[str]:
    """Each contradiction in words."""
    if sample.correctness is not None:
        yield from _misjudged(case, sample.correctness)
    if sample.status != "ok" or sample.kind != "timed":
        return  # no time of it is ever shown
    if sample.cold is None:
        yield "it succeeded but has no time"
        return
    yield from _mistimed(sample.cold)
    if not _are_nanoseconds(sample):
        yield "its times are not whole nanoseconds, which is what the clock counts"
    if sample.warm is not None:
        yield from _cut_short(sample.cold, sample.warm, settings)


def _misjudged(case: Case, found: Correctness) -> Iterator[str]:
    error = found.max_relative_error
    if case.reference is None:
        if found.tolerance is not None or error is not None:
            yield "it was compared with a reference, but none was planned"
        return
    if found.tolerance != case.tolerance:
        yield f"its tolerance is {found.tolerance!r}, but {case.tolerance!r} was planned"
    if found.reference != case.reference:
        yield f"its reference is {found.reference!r:.60}, {case.reference!r:.60} was planned"
    if found.passed != (error is not None and error <= case.tolerance):
        word = "correct" if found.passed else "wrong"
        yield f"it claims to be {word}, with an error of {error!r} and {case.tolerance!r} allowed"


def _mistimed(cold: ColdStart) -> Iterator[str]:
    total, rest = cold.total_seconds, cold.unattributed_seconds
    phases = sum(seconds for seconds in cold.phases_seconds.values() if seconds is not None)
    if total < _MIN_START:
        yield f"its first result took {total!r} s, less than any process needs to start"
    if rest < -_ROUNDING or abs(total - phases - rest) > _ROUNDING + 1e-9 * abs(total):
        yield f"its phases ({phases:.9g} s) and the rest ({rest:.9g} s) are not {total:.9g} s"


def _are_nanoseconds(sample: Sample) -> bool:
    """Whether all times are counts of the clock, but for the last bit of a double."""
    cold, warm = sample.cold, sample.warm
    times = [] if cold is None else [cold.total_seconds, *cold.phases_seconds.values()]
    times += [] if warm is None else [*warm.call_seconds, *warm.batch_seconds]
    counts = 1e9 * np.array([t for t in times if t is not None], dtype=float)
    return bool(np.all(np.abs(counts - np.rint(counts)) <= 1e-3 + 1e-15 * np.abs(counts)))


def _cut_short(cold: ColdStart, warm: WarmCalls, settings: Settings) -> Iterator[str]:
    calls, batches = warm.call_seconds, warm.batch_seconds
    if min((*calls, *batches), default=0.0) <= 0 or warm.batch_calls < 1:
        yield "a warm call or a batch took no time"
        return
    limit = max(0.0, settings.timeout_seconds / 2 - cold.total_seconds)
    least = min(settings.warm_calls_least, settings.warm_calls)
    patience = _PATIENCE * min(10 * settings.warm_seconds, limit)
    if len(calls) > max(1, settings.warm_calls) or (len(calls) < least and sum(calls) < patience):
        yield f"it has {len(calls)} warm calls; {least} to {settings.warm_calls} were planned"
    limit = max(0.0, limit - sum(calls))
    meant = settings.batches * settings.batch_seconds
    patience = _PATIENCE * min(10 * meant, limit)
    few = len(batches) < settings.batches and sum(batches) < patience
    if len(batches) > max(1, settings.batches) or few:
        yield f"it has {len(batches)} batches of calls; {settings.batches} were planned"
