"""Summarises the samples of a run to one `CaseSummary` per case.

Every text here is part of a published summary: other words need a new `steady_state.METHOD`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstlight.records import (
    PHASES,
    Case,
    CaseSummary,
    Correctness,
    Protocol,
    Sample,
    WarmEstimate,
    case_flags,
)
from firstlight.statistics.break_even import Costs, break_even
from firstlight.statistics.intervals import median, median_estimate
from firstlight.statistics.steady_state import METHOD, SteadyState, classify, level, spread

#: In increasing order. A case has the status of its worst process.
_SEVERITY = ("ok", "incomplete", "unproven", "timeout", "out-of-memory", "crashed", "failed")

_COLD_PROCESS = "fresh: one process a sample, from spawn to the first synchronised result"
_WARM_PROCESS = "persistent: the same process goes on after its first result"
_WARM_WINDOW = "the call and its synchronisation, arguments in place"


@dataclass(frozen=True)
class _Measured:
    """A sample with the steady state of its warm calls, both null without such calls."""

    sample: Sample
    state: SteadyState | None
    level: float | None  # seconds per call, see `steady_state.level`

    @classmethod
    def of(cls, sample: Sample, method: int) -> _Measured:
        if sample.warm is None:
            return cls(sample, None, None)
        state = classify(sample.warm.call_seconds, method)
        return cls(sample, state, level(sample.warm.call_seconds, state))


def summarise(
    cases: Sequence[Case], samples: Iterable[Sample], processes: int, method: int = METHOD
) -> tuple[CaseSummary, ...]:
    """Summaries in the order of `cases`; `method` is that of `steady_state.METHOD` to use."""
    by_case: dict[str, list[_Measured]] = {case.id: [] for case in cases}
    for sample in samples:
        by_case[sample.case].append(_Measured.of(sample, method))
    summaries = [_summary(c, by_case[c.id], processes) for c in cases]
    # Only cases with published numbers may enter a comparison.
    costs = {
        s.case: _costs(by_case[s.case])
        for s in summaries
        if s.status == "ok" and s.cold_seconds is not None and s.warm_call_seconds is not None
    }
    return tuple(
        replace(summary, break_even_calls=break_even(costs[case.id], _rivals(case, cases, costs)))
        if case.compiled and case.id in costs
        else summary
        for case, summary in zip(cases, summaries, strict=True)
    )


def _summary(case: Case, measured: Sequence[_Measured], processes: int) -> CaseSummary:
    samples = [m.sample for m in measured]
    check = next((s for s in samples if s.kind == "check"), None)
    timed = [s for s in samples if s.kind == "timed"]
    status, culprit = _status(case, samples, timed, processes)
    summary = CaseSummary(
        case=case.id,
        workload=case.workload,
        size=case.size,
        backend=case.backend,
        cache=case.cache,
        status=status,
        reason=case.skipped or _reason(culprit, samples),
        stderr_tail=culprit.stderr_tail if culprit else None,
        protocol=_protocol(case, check),
        correctness=_worst_correctness(samples),
        cache_proof=(culprit or timed[-1]).cache if timed else None,
        # A gate repeats broken processes under the same index: attempts count as one process.
        processes_ok=len({s.index for s in timed if s.status == "ok"}),
        processes_planned=processes if case.skipped is None else 0,
        note=case.note,
    )
    # No times for a wrong result or an unproven label; and the processes that survive a crash or
    # a time limit are a biased sample.
    shown = [m for m in measured if m.sample.kind == "timed" and m.sample.cold is not None]
    if status not in ("ok", "incomplete") or not shown or summary.protocol is None:
        return summary
    cold = [m.sample for m in shown]
    numbers = _cold(cold) | _warm(shown) | _memory(cold, check)
    return replace(summary, **numbers, counts=cold[-1].counts)


def _status(
    case: Case, samples: Sequence[Sample], timed: Sequence[Sample], processes: int
) -> tuple[str, Sample | None]:
    """The status of a case, and the sample that caused it if it is bad."""
    if case.skipped is not None:
        return "skipped", None
    worst = max(samples, key=lambda s: _SEVERITY.index(s.status), default=None)
    if worst is not None and worst.status != "ok":
        return worst.status, worst
    return ("ok" if len({s.index for s in timed}) >= processes else "incomplete"), None


def _reason(culprit: Sample | None, samples: Sequence[Sample]) -> str | None:
    """The reason of the culprit, with the number of processes that ended alike."""
    if culprit is None:
        return None
    if culprit.kind != "timed":
        return f"{culprit.kind} process: {culprit.reason}"
    timed = [s.status for s in samples if s.kind == "timed"]
    return f"{timed.count(culprit.status)} of {len(timed)} processes: {culprit.reason}"


def _protocol(case: Case, check: Sample | None) -> Protocol | None:
    """None if the check process did not get that far: then no number is shown."""
    if check is None or "data" not in check.facts:
        return None
    facts = check.facts
    return Protocol(
        cache=case.cache,
        parameters=case.parameters,
        data=tuple({k: v for k, v in item.items() if k != "bytes"} for item in facts["data"]),
        data_bytes=sum(item["bytes"] for item in facts["data"]),
        # Set in the facts if something other than a worker process was measured.
        cold_process=facts.get("cold_process", _COLD_PROCESS),
        cold_window=PHASES,
        warm_process=facts.get("warm_process", _WARM_PROCESS),
        warm_window=facts.get("warm_window", _WARM_WINDOW),
        warm_up="no call is dropped by rule: the steady part is found by change points",
        sync=facts["sync"],
        threads=facts["threads"],
        precision=facts["precision"],
        seed=case.seed,
        # The path of the run's private cache directory is not part of the protocol.
        environment=case_flags(case, Path("(private)")),
        bytecode="warm, like the page cache: a checking process ran before"
        if facts.get("writes_bytecode", True)
        else "not written (PYTHONDONTWRITEBYTECODE): a file without it is compiled at every start",
    )


def _worst_correctness(samples: Sequence[Sample]) -> Correctness | None:
    checked = [s.correctness for s in samples if s.correctness is not None]
    return max(checked, key=lambda c: (not c.passed, c.max_relative_error or 0.0), default=None)


def _cold(samples: Sequence[Sample]) -> dict[str, Any]:
    starts = [s.cold for s in samples if s.cold is not None]
    phases = {p: _median_of([c.phases_seconds.get(p) for c in starts]) for p in PHASES}
    return {
        "cold_seconds": median_estimate([c.total_seconds for c in starts]),
        "phases_seconds": phases,
        "unattributed_seconds": median([c.unattributed_seconds for c in starts]),
    }


def _warm(measured: Sequence[_Measured]) -> dict[str, Any]:
    warm = [m.sample.warm for m in measured if m.sample.warm is not None]
    if not warm:
        return {}
    levels = [m.level for m in measured if m.level is not None]
    classes = [m.state.steady_class for m in measured if m.state is not None]
    steady_class, reason = _verdict(classes, levels)
    # The process is the unit: the median over processes of their levels.
    estimate = WarmEstimate(**vars(median_estimate(levels)), steady_class=steady_class)
    return {
        "warm_call_seconds": None if reason else estimate,
        "warm_class": steady_class,
        "warm_reason": reason,
        "throughput_calls_per_second": median_estimate(
            [w.batch_calls / median(w.batch_seconds) for w in warm]
        ),
        "batch_calls": int(median([w.batch_calls for w in warm])),
    }


def _verdict(classes: Sequence[str], levels: Sequence[float]) -> tuple[str, str | None]:
    """The class of a case; and the reason, if no single number represents its calls."""
    unsteady = classes.count("no steady state")
    if unsteady >= len(classes) / 2:
        return "no steady state", f"no steady state in {unsteady} of {len(classes)} processes"
    factor = spread(levels)
    if factor is not None:
        low, high = min(levels) * 1e3, max(levels) * 1e3
        times = f"{factor:.0f}-fold: {low:.3g} ms to {high:.3g} ms a call"
        return "inconsistent", f"its processes differ {times}"
    return common_class(classes), None


def common_class(classes: Sequence[str]) -> str:
    """The class of at least three quarters of the processes, else `inconsistent`.

    A mixture of `flat` and `warmup` only is `warmup`: all processes end flat.
    """
    most = max(set(classes), key=lambda name: (classes.count(name), name))
    if classes.count(most) >= 0.75 * len(classes):
        return most
    return "warmup" if set(classes) == {"flat", "warmup"} else "inconsistent"


def _memory(samples: Sequence[Sample], check: Sample | None) -> dict[str, Any]:
    uses = [s.memory for s in samples if s.memory is not None]
    by_phase = {p: _whole_median([u.peak_host_bytes.get(p) for u in uses]) for p in PHASES}
    estimate = check.memory.compiler_bytes if check is not None and check.memory else None
    return {
        "peak_host_bytes": by_phase["first_execute"],
        "peak_host_bytes_by_phase": by_phase,
        "peak_device_bytes": _whole_median([u.peak_device_bytes for u in uses]),
        "compiler_bytes": estimate,
    }


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def _whole_median(values: Sequence[int | None]) -> int | None:
    found = _median_of(values)
    return None if found is None else int(found)


def _costs(measured: Sequence[_Measured]) -> Costs:
    """Cold totals and warm levels of a case, one per process."""
    return Costs(
        cold=[m.sample.cold.total_seconds for m in measured if m.sample.cold is not None],
        warm=[m.level for m in measured if m.level is not None],
    )


def _rivals(case: Case, cases: Sequence[Case], costs: Mapping[str, Costs]) -> dict[str, Costs]:
    """Uncompiled cases of the same workload and size by backend, preferably of the same policy."""
    rivals: dict[str, Costs] = {}
    for policy in ("none", case.cache):
        for other in cases:
            same = (other.workload, other.size, other.cache) == (case.workload, case.size, policy)
            if same and not other.compiled and other.id in costs:
                rivals[other.backend] = costs[other.id]
    return rivals
