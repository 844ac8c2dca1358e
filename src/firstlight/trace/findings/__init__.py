"""What costs time in a trace, and what to do about it: the verdict, worst first.

A family of findings is a module with functions from a `Trace` to findings. None looks at what
another found: two may speak of the same seconds, from two sides.
"""

from __future__ import annotations

from firstlight.trace.findings import (
    caching,
    programs,
    ranks,
    recompiling,
    running,
    start_up,
    torch,
)
from firstlight.trace.model import Finding, Trace

_FAMILIES = (
    start_up.one_op_compiles,
    start_up.expensive_imports,
    recompiling.recompiles,
    programs.large_constants,
    programs.unrolled_loops,
    programs.dominating_function,
    caching.cache_findings,
    running.synchronisation,
    running.late_stalls,
    ranks.same_programs,
    torch.graph_breaks,
    torch.recompiles,
    torch.long_compiles,
)


def find(trace: Trace) -> tuple[Finding, ...]:
    """All findings, most expensive first; those that stand apart are the last."""
    found = [finding for family in _FAMILIES for finding in family(trace)]
    return tuple(sorted(found, key=lambda f: (f.apart, -f.seconds)))
