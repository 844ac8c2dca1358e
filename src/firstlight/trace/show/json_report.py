"""A trace as JSON for programs: versioned, described by schemas/trace-report-1.schema.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firstlight import __version__
from firstlight.records import to_json
from firstlight.trace.findings.ci_limits import Excess
from firstlight.trace.read.model import Compile, Function, Process, Read, SourceLine, Trace
from firstlight.trace.wording import signature, why_again

Json = dict[str, object]
SCHEMA, VERSION = "firstlight.trace-report", 1

#: Fields that the report has unchanged.
_OF_FINDING = (
    *("kind", "seconds", "before_first_result_seconds", "title", "function", "location"),
    *("remedy", "evidence"),
)
_OF_COMPILE = (
    *("process", "begin_seconds", "compiled", "recompile_reason", "cache", "equations"),
    *("constant_bytes", "constants", "executable_bytes", "results_before"),
)
_OF_PROCESS = (
    *("pid", "rank", "command", "python", "whole", "wall_seconds", "first_result_seconds"),
    *("first_result_witness", "phases_seconds", "imports", "own_seconds", "unfinished"),
    "problems",
)


def report(
    trace: Trace,
    exceeded: Sequence[Excess] = (),
    outcome: Mapping[str, object] | None = None,
    what_if: Mapping[str, object] | None = None,
) -> Json:
    """The content of the report; findings and functions worst first."""
    return {
        "schema": SCHEMA,
        "schema_version": VERSION,
        "firstlight": __version__,
        "time_to_first_result_seconds": trace.time_to_first_result_seconds,
        "compiles": trace.compile_count,
        "recompiles": trace.recompiles,
        "findings": [_fields(finding, _OF_FINDING) for finding in trace.findings],
        "functions": [_function(function) for function in trace.functions],
        "processes": [_process(process) for process in trace.processes],
        "torch_regions": to_json(trace.torch_regions),
        "exceeded": to_json(exceeded),
        "outcome": outcome,
        "what_if": what_if,
    }


def _fields(value: object, names: Sequence[str]) -> Json:
    return {name: to_json(getattr(value, name)) for name in names}


def _at(place: SourceLine | None) -> str | None:
    return place.location if place else None


def _function(function: Function) -> Json:
    return {
        **_fields(function, ("name", "module", "library")),
        "location": _at(function.place),
        "compiles": sum(c.compiled for c in function.compiles),
        "recompiles": 0 if function.library else function.recompiles,
        "seconds": function.stage_seconds,
        "total_seconds": function.seconds,
        "cache": function.cache_counts,
        "calls": [_compile(c) for c in function.compiles],
    }


def _compile(compile_: Compile) -> Json:
    return {
        **_fields(compile_, _OF_COMPILE),
        "seconds": dict(compile_.stage_seconds),
        "site": _at(compile_.site),
        "user_site": _at(compile_.user_site),
        "stack": [place.location for place in compile_.stack],
        "signature": signature(compile_.signature, limit=100) if compile_.signature else None,
        "recompile_detail": why_again(compile_),
    }


def _process(process: Process) -> Json:
    return {
        **_fields(process, _OF_PROCESS),
        "jax": process.jax_version,
        "torch": process.torch_version,
        "first_result_location": _at(process.first_result_site),
        "first_read": _moment(process.first_read),
        "first_output": _moment(process.first_output),
        "waits": [
            {"location": _at(w.user_site or w.site), "count": w.count, "seconds": w.seconds}
            for w in process.waits
        ],
    }


def _moment(read: Read | None) -> Json | None:
    if read is None:
        return None
    return {"seconds": read.seconds, "location": _at(read.site), "package": read.package}
