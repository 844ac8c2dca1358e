"""The cost of compiles: in total, before the first result, and as a share of the start."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import TypedDict

from firstlight.trace.findings import thresholds
from firstlight.trace.read import phases
from firstlight.trace.read.model import Compile, Trace


class Cost(TypedDict):
    """The cost fields of a finding."""

    seconds: float
    before_first_result_seconds: float


def cost(
    compiles: Iterable[Compile], seconds: Callable[[Compile], float] = attrgetter("seconds")
) -> Cost:
    """The sum of `seconds` over compiles, and the part of it before the first result."""
    spent = [(seconds(one), one.before_first_result) for one in compiles]
    early = sum(one for one, before in spent if before)
    return Cost(seconds=sum(one for one, _ in spent), before_first_result_seconds=early)


def xla_seconds(one: Compile) -> float:
    """XLA's time, without tracing and lowering."""
    return one.stage_seconds.get("compile") or 0.0


def start_seconds(trace: Trace) -> float:
    """Time to the first result plus compiles after it; without a first result, the whole run."""
    leading = phases.leading(trace)
    if leading is None:
        return 0.0
    if leading.first_result_seconds is None:
        return sum(leading.phases_seconds.values())
    late = (c for f in trace.functions for c in f.compiles if not c.before_first_result)
    return leading.first_result_seconds + sum(c.seconds for c in late)


def is_part_of_start(
    trace: Trace, compiles: Collection[Compile], spent_seconds: float, share: float
) -> bool:
    """Whether these compiles took at least this share of the start; if only a part of the run was
    recorded, they must also be large."""
    if spent_seconds < share * start_seconds(trace):
        return False
    if any(process.whole for process in trace.processes):
        return True
    equations = sum(one.equations or 0 for one in compiles)
    return len(compiles) >= thresholds.LARGE_PROGRAMS or equations >= thresholds.LARGE_EQUATIONS
