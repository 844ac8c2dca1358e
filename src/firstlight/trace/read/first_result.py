"""Which moment was the first result of the program, of all that were read and put out.

What a package reads for itself, and what is read to prepare data, is not a result. The witnesses
are the program's own reads, and what it puts out. A read that is put out before anything else is
compiled is a result, whatever was compiled for it. Else the first output that holds a number, once
a function has been compiled, has a result in it: if the program itself read one since the last
compile before that output, the result was there with that read; if only a package did, with the
output.
"""

from __future__ import annotations

from dataclasses import dataclass

from firstlight.trace.read.event_checks import Event
from firstlight.trace.read.log_events import ProcessLog, place_of
from firstlight.trace.read.model import CONTROL_FLOW, Read, SourceLine, Witness


@dataclass(frozen=True)
class FirstResult:
    """When it was there, by the clock of the log."""

    ns: int
    site: SourceLine | None
    witness: Witness


def first_result(log: ProcessLog) -> FirstResult | None:
    """None: the program read and put out nothing that could be one."""
    marked = log.first("marked")
    if marked is not None:
        return _at(marked, Witness.MARKED)
    if log.head.get("first_result_pattern"):
        return None  # what was asked for did not come
    found = [one for one in (_first_shown(log), _after_functions(log)) if one is not None]
    return min(found, key=lambda one: one.ns, default=None)


def _first_shown(log: ProcessLog) -> FirstResult | None:
    """The first result that the program read and put out before anything else was compiled."""
    ends = sorted(e["end_ns"] for e in log.of("stage") if e["stage"] == "compile")
    outputs = [e["ns"] for e in log.of("output") if e.get("reads")]
    for read in sorted(log.of("read"), key=_ns):
        compiled = next((ns for ns in ends if ns > read["ns"]), None)
        if any(read["ns"] <= ns and (compiled is None or ns < compiled) for ns in outputs):
            return _at(read, Witness.READ)
    return None


def _after_functions(log: ProcessLog) -> FirstResult | None:
    """The first result once a function of the program was compiled."""
    compiled = _functions_compiled(log)
    since, output = compiled[0] if compiled else log.start_ns, _first_output(log)
    reads = [e for e in log.of("read") if e["ns"] >= since]
    if output is not None:
        since = max((ns for ns in compiled if ns <= output["ns"]), default=since)
        reads = [e for e in reads if since <= e["ns"] <= output["ns"]]
    if reads:
        return _at(min(reads, key=_ns), Witness.READ)
    return None if output is None else _at(output, Witness.PUT_OUT)


def _first_output(log: ProcessLog) -> Event | None:
    """The first output with a number in it after a function was compiled; after the first read,
    if any was seen: NumPy reads an array on a CPU unseen."""
    compiled, seen = _functions_compiled(log), log.first("first_result") is not None
    begin = compiled[0] if compiled else log.start_ns
    outputs = (e for e in log.of("output") if e["ns"] >= begin and (e.get("reads") or not seen))
    return min(outputs, key=_ns, default=None) if compiled or seen else None


def first_read(log: ProcessLog) -> Read | None:
    """The first result that anybody read."""
    return _moment(log, log.first("first_result"))


def put_out(log: ProcessLog) -> Read | None:
    """The first output that may hold a result, from the first result on."""
    first = first_result(log)
    outputs = [e for e in log.of("output") if e.get("reads") and first and e["ns"] >= first.ns]
    return _moment(log, min(outputs, key=_ns, default=None) or _first_output(log))


def _moment(log: ProcessLog, event: Event | None) -> Read | None:
    if event is None:
        return None
    return Read(log.seconds_at(event["ns"]), place_of(event.get("site")), event.get("by") or None)


def _functions_compiled(log: ProcessLog) -> list[int]:
    """Ends of all compiles but those of JAX's own operations, in order; a loop has functions."""
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
