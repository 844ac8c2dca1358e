"""Which logs of a folder are of one run: a variable that stays set lets several write there.

Processes that were there at the same time are of one run, and so are those that one of its
processes started, and ranks of a job, which may come one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from firstlight.trace.read.log_events import ProcessLog


def last_run(logs: Sequence[ProcessLog]) -> tuple[list[ProcessLog], int]:
    """The logs of the last run, and how many runs there were before. logs: by their start."""
    runs: list[list[ProcessLog]] = []
    for log in logs:
        if runs and _belongs(log, runs[-1]):
            runs[-1].append(log)
        else:
            runs.append([log])
    return (runs[-1], len(runs) - 1) if runs else ([], 0)


def _belongs(log: ProcessLog, run: Sequence[ProcessLog]) -> bool:
    if log.start_of_day_ns <= max(map(_end_of_day_ns, run)):
        return True
    if any(_started(other, log) for other in run):
        return True
    rank = log.head.get("rank")
    return rank is not None and all(other.head.get("rank") not in (None, rank) for other in run)


def _started(other: ProcessLog, log: ProcessLog) -> bool:
    """Whether a process started another, or became it (exec), which has no end of its own."""
    pid = other.head["pid"]
    return bool(pid == log.head.get("parent")) or (
        pid == log.head["pid"] and other.first("end") is None
    )


def _end_of_day_ns(log: ProcessLog) -> int:
    return log.start_of_day_ns + log.last_ns - log.start_ns
