"""Decides which read or output was the first result of the program.

Reads by a package for its own purposes, and reads that prepare data, are not results. The evidence
is what the program itself reads and outputs. A read that is output before anything else is compiled
is a result. Otherwise the first output with a number after a function was compiled contains one: if
the program itself read an array between the last compile and that output, the result was there at
that read; if only a package did, at the output.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstlight.trace.read.event_checks import Event
from firstlight.trace.read.log_events import ProcessLog, place_of
from firstlight.trace.read.model import CONTROL_FLOW, Read, SourceLine, Witness


@dataclass(frozen=True)
class FirstResult:
    """The moment of the first result, by the clock of the log."""

    ns: int
    site: SourceLine | None
    witness: Witness


def first_result(log: ProcessLog) -> FirstResult | None:
    """None if the program read and output nothing that could be a result."""
    marked = log.first("marked")
    if marked is not None:
        return _at(marked, Witness.MARKED)
    if log.head.get("first_result_pattern"):
        return None  # what the user asked for did not come
    found = [one for one in (_first_shown(log), _after_functions(log)) if one is not None]
    return min(found, key=lambda one: one.ns, default=None)


def _first_shown(log: ProcessLog) -> FirstResult | None:
    """The first read whose value the program output before anything else was compiled."""
    ends = sorted(e["end_ns"] for e in log.of("stage") if e["stage"] == "compile")
    outputs = [e["ns"] for e in log.of("output") if e.get("reads")]
    for read in sorted(log.of("read"), key=_ns):
        compiled = next((ns for ns in ends if ns > read["ns"]), None)
        if any(read["ns"] <= ns and (compiled is None or ns < compiled) for ns in outputs):
            return _at(read, Witness.READ)
    return None


def _after_functions(log: ProcessLog) -> FirstResult | None:
    """The first result after a function of the program was compiled."""
    compiled = _functions_compiled(log)
    since, output = compiled[0] if compiled else log.start_ns, _first_number_output(log)
    reads = [e for e in log.of("read") if e["ns"] >= since]
    if output is not None:
        since = max((ns for ns in compiled if ns <= output["ns"]), default=since)
        reads = [e for e in reads if since <= e["ns"] <= output["ns"]]
    if reads:
        return _at(min(reads, key=_ns), Witness.READ)
    return None if output is None else _at(output, Witness.PUT_OUT)


def _first_number_output(log: ProcessLog) -> Event | None:
    """The first output with a number after a function was compiled; if any read was seen, the first
    after it. (NumPy's reads of an array on a CPU cannot be seen.)"""
    compiled, seen = _functions_compiled(log), log.first("first_result") is not None
    begin = compiled[0] if compiled else log.start_ns
    outputs = (e for e in log.of("output") if e["ns"] >= begin and (e.get("reads") or not seen))
    return min(outputs, key=_ns, default=None) if compiled or seen else None


def first_read(log: ProcessLog) -> Read | None:
    """The first read by anything, packages included."""
    return _moment(log, log.first("first_result"))


def first_output(log: ProcessLog) -> Read | None:
    """The first output that may show a result, at or after the first result."""
    first = first_result(log)
    outputs = [e for e in log.of("output") if e.get("reads") and first and e["ns"] >= first.ns]
    return _moment(log, min(outputs, key=_ns, default=None) or _first_number_output(log))


def _moment(log: ProcessLog, event: Event | None) -> Read | None:
    if event is None:
        return None
    return Read(log.seconds_at(event["ns"]), place_of(event.get("site")), event.get("by") or None)


def _functions_compiled(log: ProcessLog) -> list[int]:
    """Ends of all compiles in order, except those of JAX's operations (loops hold functions)."""
    library = {
        e["call"]
        for e in log.of("call")
        if e.get("library") and e["function"].get("name") not in CONTROL_FLOW
    }
    stages = (e for e in log.of("stage") if e["stage"] == "compile")
    return sorted(e["end_ns"] for e in stages if e["call"] not in library)


def _ns(event: Event) -> int:
    return int(event["ns"])


def _at(event: Event, witness: Witness) -> FirstResult:
    return FirstResult(event["ns"], place_of(event.get("site")), witness)
