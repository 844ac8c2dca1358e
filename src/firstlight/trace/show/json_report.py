"""A trace as JSON for programs: versioned, described by schemas/trace-report-1.schema.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from firstlight import __version__
from firstlight.records import to_json
from firstlight.trace.findings.limits import Excess
from firstlight.trace.read.model import Compile, Function, Process, Read, Trace
from firstlight.trace.wording import signature, why_again

SCHEMA, VERSION = "firstlight.trace-report", 1


def report(
    trace: Trace,
    exceeded: Sequence[Excess] = (),
    outcome: Mapping[str, Any] | None = None,
    what_if: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that a report shows; findings and functions worst first."""
    return {
        "schema": SCHEMA,
        "schema_version": VERSION,
        "firstlight": __version__,
        "time_to_first_result_seconds": trace.time_to_first_result_seconds,
        "compiles": trace.compiles,
        "recompiles": trace.recompiles,
        "findings": [
            {
                "kind": f.kind,
                "seconds": f.seconds,
                "before_first_result_seconds": f.before_first_result_seconds,
                "title": f.title,
                "function": f.function,
                "location": f.location,
                "remedy": f.remedy,
                "evidence": to_json(f.evidence),
            }
            for f in trace.findings
        ],
        "functions": [_function(f) for f in trace.functions],
        "processes": [_process(p) for p in trace.processes],
        "torch_regions": [to_json(region) for region in trace.torch_regions],
        "exceeded": [to_json(excess) for excess in exceeded],
        "outcome": outcome,
        "what_if": what_if,
    }


def _function(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "location": function.place and function.place.location,
        "module": function.module,
        "library": function.library,
        "compiles": sum(c.compiled for c in function.compiles),
        "recompiles": 0 if function.library else function.recompiles,
        "seconds": function.stage_seconds,
        "total_seconds": function.seconds,
        "cache": function.cache_counts,
        "calls": [_compile(c) for c in function.compiles],
    }


def _compile(compile_: Compile) -> dict[str, Any]:
    cache = compile_.cache
    return {
        "process": compile_.process,
        "begin_seconds": compile_.begin_seconds,
        "seconds": dict(compile_.stage_seconds),
        "compiled": compile_.compiled,
        "site": compile_.site and compile_.site.location,
        "user_site": compile_.user_site and compile_.user_site.location,
        "stack": [place.location for place in compile_.stack],
        "signature": signature(compile_.signature, most=100) if compile_.signature else None,
        "recompile_reason": compile_.recompile_reason,
        "recompile_detail": why_again(compile_),
        "cache": None if cache is None else to_json(cache),
        "equations": compile_.equations,
        "constant_bytes": compile_.constant_bytes,
        "constants": [to_json(constant) for constant in compile_.constants],
        "executable_bytes": compile_.executable_bytes,
        "results_before": compile_.results_before,
    }


def _moment(read: Read | None) -> dict[str, Any] | None:
    if read is None:
        return None
    return {
        "seconds": read.seconds,
        "location": read.site and read.site.location,
        "package": read.package,
    }


def _process(process: Process) -> dict[str, Any]:
    witness = process.first_result_witness
    return {
        "pid": process.pid,
        "rank": process.rank,
        "command": list(process.command),
        "python": process.python,
        "jax": process.jax_version,
        "torch": process.torch_version,
        "whole": process.whole,
        "wall_seconds": process.wall_seconds,
        "first_result_seconds": process.first_result_seconds,
        "first_result_location": process.first_result_site and process.first_result_site.location,
        "first_result_witness": witness.value if witness else None,
        "first_read": _moment(process.first_read),
        "first_output": _moment(process.first_output),
        "phases_seconds": dict(process.phases_seconds),
        "imports": [to_json(package) for package in process.imports],
        "waits": [
            {
                "location": (site := w.user_site or w.site) and site.location,
                "count": w.count,
                "seconds": w.seconds,
            }
            for w in process.waits
        ],
        "own_seconds": process.own_seconds,
        "unfinished": process.unfinished,
        "problems": list(process.problems),
    }
