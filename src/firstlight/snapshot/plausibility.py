"""Consistency checks of a run, and the rule for which runs may be published.

They find nothing in a run that Firstlight measured. A carefully forged record passes: one in which
all times are scaled alike, and clock and digits adjusted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from firstlight.records import (
    CONCURRENT,
    REPEATS,
    SERVER_ADAPTER,
    Case,
    CaseSummary,
    ColdStart,
    Correctness,
    Sample,
    Settings,
    WarmCalls,
    to_json,
)
from firstlight.snapshot.errors import RefusedError, UnusableSnapshotError
from firstlight.snapshot.layout import PLAN, RUN, SAMPLES
from firstlight.snapshot.opening import RawRun, timed
from firstlight.snapshot.order_and_clock import implausible, is_side_of_gate, outside_of_run
from firstlight.statistics.case_summaries import summarise
from firstlight.statistics.steady_state import METHOD
from firstlight.workloads.catalog import BACKENDS

#: Sums computed in another order, on another processor, differ in the last digits.
_TOLERANCE = 1e-9
#: What `--allow` accepts, with the remedy.
ALLOWABLE = {
    "incomplete": "Finish it with `firstlight run --resume`, or publish it as it is with "
    "--allow incomplete: the snapshot will say so.",
    "unproven": "The cache was not in the state that the label claims. Publish it with --allow "
    "unproven: the snapshot then lists the case as unproven, without a number.",
    "failed": "Publish it with --allow failed: the snapshot then lists the case with its reason, "
    "without a number.",
}
_FAILURES = ("failed", "crashed", "timeout", "out-of-memory")
_CACHE_KINDS = {backend.name: backend.cache for backend in BACKENDS}
#: The control of a gate is a case of the catalogue under another id.
_CONTROL = ("control", "control/numpy/none")
#: Seconds: a cold start is a sum of ten times, each rounded to a nanosecond.
_ROUNDING = 1e-7
#: Share of its patience after which the instrument may stop: it checks only between calls.
_PATIENCE = 0.9
#: Seconds: no interpreter maps its libraries and imports its modules faster.
_MIN_START = 1e-3


def method_and_inconsistencies(runs: Sequence[RawRun]) -> tuple[int, list[list[str]]]:
    """The newest method by which the runs follow from their samples, and each run's findings.

    If no method fits, the findings are those of the newest.
    """
    by_method = {}
    for method in range(METHOD, 0, -1):
        by_method[method] = [inconsistencies(raw, method) for raw in runs]
        if not any(by_method[method]):
            return method, by_method[method]
    return METHOD, by_method[METHOD]


def require_admissible(
    raw: RawRun, found: Sequence[str], allowed: Sequence[str], name: str
) -> None:
    """Refuse a run with inconsistencies (`found`), or with cases that `allowed` does not cover."""
    if found:
        raise RefusedError(f"{name}: {found[0]}. Measure again: such a run is never published.")
    for kind, cases in needed_allowances(raw).items():
        if kind not in allowed:
            more = " …" if len(cases) > 5 else ""
            raise RefusedError(f"{name}: {kind}: {', '.join(cases[:5])}{more}. {ALLOWABLE[kind]}")
    if all(case.cold_seconds is None for case in raw.run.cases):
        raise RefusedError(f"{name}: no case of this run has a number: nothing to publish.")


def needed_allowances(raw: RawRun) -> dict[str, list[str]]:
    """{"unproven": its cases, …}: what `--allow` must list to publish the run."""
    found: dict[str, list[str]] = {kind: [] for kind in ALLOWABLE}
    for case in raw.run.cases:
        kind = "failed" if case.status in _FAILURES else case.status
        found.get(kind, []).append(case.case)
    if not raw.run.complete and not found["incomplete"]:
        found["incomplete"] = ["the run"]
    return {kind: cases for kind, cases in found.items() if cases}


def inconsistencies(raw: RawRun, method: int = METHOD) -> list[str]:
    """What in a run does not follow from its plan and samples, in words."""
    found = _recomputed(raw, method)
    if [case.case for case in raw.run.cases] != [case.case for case in found]:
        return [f"{RUN} does not have the cases of {PLAN}"]
    summaries = [
        f"a summary does not follow from the samples: {difference}"
        for published, computed in zip(raw.run.cases, found, strict=True)
        for difference in differences(published, computed, published.case)
    ]
    return [*_contradictions(raw), *summaries]


def _recomputed(raw: RawRun, method: int) -> tuple[CaseSummary, ...]:
    for sample in raw.samples:
        if sample.case not in raw.planned:
            raise UnusableSnapshotError(f"{raw.folder}: no case {sample.case[:80]!r} was planned.")
    try:
        return summarise(raw.plan.cases, raw.samples, raw.plan.settings.processes, method)
    except (ValueError, KeyError, TypeError, ZeroDivisionError, IndexError) as error:
        raise UnusableSnapshotError(
            f"{raw.folder}: its samples cannot be summarised ({type(error).__name__}: {error})."
        ) from None


def differences(found: object, expected: object, path: str = "") -> Iterator[str]:
    """Every place where two values differ, as `path: found, not expected`."""
    found, expected = to_json(found), to_json(expected)
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}):
            below = f"{path}.{key}" if path else str(key)
            yield from differences(found.get(key), expected.get(key), below)
    elif isinstance(found, list) and isinstance(expected, list):
        if len(found) != len(expected):
            yield f"{path}: {len(found)} items, not {len(expected)}"
        for i, (one, other) in enumerate(zip(found, expected, strict=False)):
            yield from differences(one, other, f"{path}[{i}]")
    elif not _same(found, expected):
        yield f"{path}: {_short(found)}, not {_short(expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _same(one: object, other: object) -> bool:
    if type(one) is type(other) and not isinstance(one, float):
        return bool(one == other)
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return float in (type(one), type(other)) and math.isclose(
            one, other, rel_tol=_TOLERANCE, abs_tol=1e-300
        )
    return False


def _contradictions(raw: RawRun) -> Iterator[str]:
    run, plan, settings = raw.run, raw.plan, raw.plan.settings
    for field, found, planned in (
        ("id", run.id, f"{plan.created_at}-{plan.target}"),
        ("created_at", run.created_at, plan.created_at),
        ("settings", run.settings, {"target": plan.target, **to_json(settings)}),
        ("warnings", run.warnings[: len(plan.warnings)], plan.warnings),
        ("harness", run.harness, plan.harness),
        ("host", {k: v for k, v in run.host.items() if k != "load_after"}, plan.host),
    ):
        for difference in differences(found, planned, field):
            yield f"{RUN} differs from {PLAN}: {difference}"
    yield from outside_of_run(run, raw.samples)
    attempts = 1 + REPEATS if is_side_of_gate(raw) else 1
    for case in plan.cases:
        yield from _mislabelled(case)
        yield from _miscounted(case, raw.by_case.get(case.id, ()), settings, attempts)
    for sample in raw.samples:
        for reason in _impossible(raw.planned[sample.case], sample, settings):
            yield f"{sample.case}, {sample.kind} process {sample.index}: {reason}"
    yield from implausible(raw)
    for summary in run.cases:
        yield from _unsupported(raw, summary)
    if run.complete != all(c.status != "incomplete" for c in run.cases):
        yield f"{RUN} is wrong about being complete"


def _miscounted(
    case: Case, samples: Sequence[Sample], settings: Settings, attempts: int
) -> Iterator[str]:
    """Timed processes have consecutive numbers, once each; a gate repeats a failed one at once."""
    numbers = [s.index for s in sorted(samples, key=lambda s: s.order) if s.kind == "timed"]
    taken = Counter(numbers)
    if taken and max(taken.values()) > attempts:
        often = "twice" if attempts == 1 else f"more than {attempts} times"
        yield f"{SAMPLES} has a timed process of {case.id} {often}"
    elif len(taken) < len(numbers) and numbers != sorted(numbers):
        yield f"{SAMPLES} has a timed process of {case.id} again after a later one"
    elif sorted(taken) != list(range(len(taken))):
        yield f"{SAMPLES} lacks a timed process of {case.id} before its last one"
    elif len(taken) > settings.processes:
        yield f"{SAMPLES} has {len(taken)} timed processes of {case.id}, not {settings.processes}"


def _unsupported(raw: RawRun, case: CaseSummary) -> Iterator[str]:
    """Numbers that lack evidence."""
    if case.cold_seconds is None:
        return
    samples = raw.by_case[case.case]
    times = len(timed(samples))
    if case.protocol is None:
        yield f"{case.case} has a number but no protocol"
    if case.correctness is None or not case.correctness.passed:
        yield f"{case.case} has a number but no correct result"
    if times != case.cold_seconds.n or not times:
        yield f"{case.case} has a number from {case.cold_seconds.n} processes, but {times} samples"
    for sample in samples:
        if sample.status != "ok" or sample.correctness is None or not sample.correctness.passed:
            what = f"its {sample.kind} process {sample.index} was not correct"
            yield f"{case.case} has a number but {what} (status {sample.status!r:.20})"
            break
    objections = unproven_labels(raw.planned[case.case], samples)
    if objections:
        yield f"{case.case} has a number but its label is not proven: {objections[0]}"


def _mislabelled(case: Case) -> Iterator[str]:
    """The id is what people quote, so it must agree with the fields."""
    named = f"{case.workload}[{case.size}]/{case.backend}/{case.cache}"
    if case.id != named and (case.workload, case.id) != _CONTROL:
        yield f"{PLAN}: the case {case.id} is {named} by its fields"
    if case.cache_kind is None and case.cache != "none":
        yield f"{case.id} is labelled {case.cache!r}, but its backend has no such cache"
    kind = _CACHE_KINDS.get(case.backend, case.cache_kind)
    if kind != case.cache_kind:
        yield (
            f"{case.id}: {PLAN} gives it the cache {case.cache_kind!r}, {case.backend} has {kind!r}"
        )


def unproven_labels(case: Case, samples: Sequence[Sample]) -> list[str]:
    """Per process, what contradicts the label of a case: no proof, or counts that refute it.

    The words are part of validation_report.json, so they must never change.
    """
    found = [(s.index, _objection(case, s)) for s in samples if s.kind == "timed"]
    return [f"process {index}: {reason}" for index, reason in found if reason is not None]


def _objection(case: Case, sample: Sample) -> str | None:
    proof = sample.cache
    if proof is None:
        return "no proof was recorded"
    if not proof.proven:
        return proof.reason or "marked as not proven"
    if proof.policy != case.cache:
        return f"the proof is for the policy {proof.policy!r}, the label says {case.cache!r}"
    if case.cache_kind is None:
        return None  # no persistent cache: nothing that could be in another state
    if case.cache in ("none", "frozen", "tiered") and proof.requests:
        return f"{proof.requests} requests to a cache that is off"
    if case.cache == "none":
        return None
    if case.cache in ("frozen", "tiered"):
        return _not_as_counted(case.cache, sample.counts)
    if not proof.requests:
        return "the cache was never asked"
    if case.cache == "cold":
        if proof.entries_before:
            return f"{proof.entries_before} entries before the process: not cold"
        return None if proof.entries_after else "nothing was stored: the cache was not on"
    if proof.hits is None or proof.hits < proof.requests:
        return f"{proof.hits} hits of {proof.requests} requests: not warm"
    if (proof.entries_after or 0) > (proof.entries_before or 0):
        return "entries were added: not everything was cached before"
    return None


def _not_as_counted(policy: str, counts: Mapping[str, int | None]) -> str | None:
    """Where the counts of a process contradict its policy."""
    if policy == "frozen":
        compiled = [
            n for n in ("traces", "lowerings", "compiles", "warm_compiles") if counts.get(n)
        ]
        return f"{compiled[0]} in a process that should need none" if compiled else None
    known = counts.get("signatures")
    begun, switched = (counts.get(f"signatures_{n}") for n in ("begun_in_numpy", "switched"))
    if not known or begun != known or switched != known:
        return "not every signature began in NumPy and switched"
    return None


def _impossible(case: Case, sample: Sample, settings: Settings) -> Iterator[str]:
    """What contradicts the plan or the way the instrument works, within one process."""
    if sample.correctness is not None:
        yield from _wrongly_checked(case, sample.correctness)
    if CONCURRENT in sample.facts and case.adapter != SERVER_ADAPTER:
        yield "its calls are said to overlap, which only requests to a server do"
    if sample.status != "ok" or sample.kind != "timed":
        return  # its times are never shown
    if sample.cold is None:
        yield "it succeeded but has no time"
        return
    # A request to a running server starts no process.
    yield from _mistimed(sample.cold, 0.0 if case.adapter == SERVER_ADAPTER else _MIN_START)
    if not _are_nanoseconds(sample.cold, sample.warm):
        yield "its times are not whole nanoseconds, which is what the clock counts"
    if sample.warm is not None:
        yield from _cut_short(sample.cold, sample.warm, settings)


def _wrongly_checked(case: Case, found: Correctness) -> Iterator[str]:
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


def _mistimed(cold: ColdStart, min_seconds: float) -> Iterator[str]:
    total, rest = cold.total_seconds, cold.unattributed_seconds
    phases = sum(seconds for seconds in cold.phases_seconds.values() if seconds is not None)
    if total < min_seconds:
        yield f"its first result took {total!r} s, less than any process needs to start"
    if rest < -_ROUNDING or abs(total - phases - rest) > _ROUNDING + 1e-9 * abs(total):
        yield f"its phases ({phases:.9g} s) and the rest ({rest:.9g} s) are not {total:.9g} s"


def _are_nanoseconds(cold: ColdStart, warm: WarmCalls | None) -> bool:
    """Whether all times are whole nanoseconds, up to the last bit of a double."""
    times = [cold.total_seconds, *cold.phases_seconds.values()]
    times += [*warm.call_seconds, *warm.batch_seconds] if warm is not None else []
    counts = 1e9 * np.array([t for t in times if t is not None], dtype=float)
    return bool(np.all(np.abs(counts - np.rint(counts)) <= 1e-3 + 1e-15 * np.abs(counts)))


def _cut_short(cold: ColdStart, warm: WarmCalls, settings: Settings) -> Iterator[str]:
    """Fewer or more calls than the instrument makes: at least `warm_calls_least` and all batches,
    unless its patience ends, after ten times the planned time or near half of the time limit."""
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
    patience = _PATIENCE * min(10 * settings.batches * settings.batch_seconds, limit)
    few = len(batches) < settings.batches and sum(batches) < patience
    if len(batches) > max(1, settings.batches) or few:
        yield f"it has {len(batches)} batches of calls; {settings.batches} were planned"
