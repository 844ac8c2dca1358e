"""What compiles cost: in all, as far as the first result waited for them, of the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypedDict

from firstlight.trace.findings import thresholds as limits
from firstlight.trace.read import phases
from firstlight.trace.read.model import Compile, Trace


class Cost(TypedDict):
    """Fields of a finding."""

    seconds: float
    before_first_result_seconds: float


def cost(
    compiles: Iterable[Compile], seconds: Callable[[Compile], float] = attrgetter("seconds")
) -> Cost:
    """Of these compiles. seconds: what of each is meant."""
    every = [(seconds(one), one.before_first_result) for one in compiles]
    return Cost(
        seconds=sum(spent for spent, _ in every),
        before_first_result_seconds=sum(spent for spent, before in every if before),
    )


def start_seconds(trace: Trace) -> float:
    """The time until the first result, and what was compiled after it; without one, the whole."""
    leading = phases.leading(trace)
    if leading is None:
        return 0.0
    first = leading.first_result_seconds
    if first is None:
        return sum(leading.phases_seconds.values())
    late = (c for f in trace.functions for c in f.compiles if not c.before_first_result)
    return first + sum(c.seconds for c in late)


def is_part_of_start(
    trace: Trace, compiles: Iterable[Compile], spent_seconds: float, share: float
) -> bool:
    """Whether these compiles took at least such a share of the start."""
    if spent_seconds < share * start_seconds(trace):
        return False
    if any(process.whole for process in trace.processes):
        return True
    every = list(compiles)
    equations = sum(one.equations or 0 for one in every)
    return len(every) >= limits.LARGE_PROGRAMS or equations >= limits.LARGE_EQUATIONS
