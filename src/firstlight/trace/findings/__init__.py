"""Findings of a trace: what costs time and what to do about it, worst first.

A family of findings is a function from a `Trace` to findings. Families are independent: two may
report the same seconds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from firstlight.trace.findings import (
    after_start,
    caching,
    recompiling,
    several_devices,
    slow_programs,
    start_up,
    torch_compile,
)
from firstlight.trace.read.assembly import read_folder
from firstlight.trace.read.model import Finding, Trace

_FAMILIES = (
    start_up.one_op_compiles,
    start_up.expensive_imports,
    start_up.reserved_memory,
    recompiling.recompiles,
    slow_programs.large_constants,
    slow_programs.unrolled_loops,
    slow_programs.dominating_function,
    caching.cache_findings,
    after_start.synchronisation,
    after_start.late_stalls,
    caching.same_programs,
    several_devices.ranks_apart,
    several_devices.resharded_arguments,
    torch_compile.graph_breaks,
    torch_compile.recompiles,
    torch_compile.long_compiles,
)


def find(trace: Trace) -> tuple[Finding, ...]:
    """All findings, most expensive first; those marked `apart` come last."""
    found = [finding for family in _FAMILIES for finding in family(trace)]
    return tuple(sorted(found, key=lambda f: (f.apart, -f.seconds)))


def load(folder: Path) -> Trace:
    """The trace in a folder with its findings. TraceLogError: there is none, or it is newer."""
    trace = read_folder(folder)
    return replace(trace, findings=find(trace))
