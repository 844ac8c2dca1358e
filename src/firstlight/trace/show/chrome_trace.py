"""A trace in the Trace Event Format, for ui.perfetto.dev, chrome://tracing and Speedscope.

Each process has a lane per thread (at any moment the innermost activity counts, as in the timeline
of the page), and below it a lane per stage of compiling, where functions are nested in their
callers. Times are microseconds from the start of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from firstlight import __version__
from firstlight.trace.read import phases
from firstlight.trace.read.model import STAGES, Compile, Function, Process, Span, Trace, Witness
from firstlight.trace.read.source_lines import SourceLines
from firstlight.trace.show.verdict import headline
from firstlight.trace.wording import called_from, place, signature, why_again

_Event = dict[str, object]
_LANES = 1 + len(STAGES)  # per thread


def chrome_trace(trace: Trace) -> dict[str, object]:
    """The content of the file."""
    source = SourceLines(trace)
    events = [event for process in trace.processes for event in _process(process)]
    events += [
        event
        for function in trace.functions
        for one in function.compiles
        for event in _compile(function, one, trace.processes[one.process], source)
    ]
    lanes = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    names = [n for p in trace.processes for n in _names(p) if (n["pid"], n["tid"]) in lanes]
    about = {"producer": f"firstlight {__version__}", "verdict": headline(trace)}
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": about}


def _event(
    process: Process, lane: int, phase: str, name: str, about: Mapping[str, object], **more: object
) -> _Event:
    # Viewers take the thread with the process's number for the main one, and put it first. The pid
    # would not be unique: two machines may have given the same one.
    number = 1000 * (process.number + 1)
    return {"ph": phase, "name": name, "pid": number, "tid": number + lane, "args": about, **more}


def _names(process: Process) -> Iterator[_Event]:
    rank = f", rank {process.rank}" if process.rank else ""
    command = " ".join(process.command) or "python"
    named = {"name": f"{command} (pid {process.pid}{rank})"}
    yield _event(process, 0, "M", "process_name", named)
    for number, thread in enumerate(("main thread", *(t.name for t in process.threads))):
        stages = (f"{phases.name_of(stage)} ({thread})" for stage in STAGES)
        for lane, name in enumerate((thread, *stages), start=_LANES * number):
            yield _event(process, lane, "M", "thread_name", {"name": name})
            yield _event(process, lane, "M", "thread_sort_index", {"sort_index": lane})


def _process(process: Process) -> Iterator[_Event]:
    for number, spans in enumerate(phases.lanes(process)):
        for span in spans:
            if span.kind != "rest" and span.end_seconds > span.begin_seconds:
                name = span.label or phases.name_of(span.kind)
                yield _slice(process, _LANES * number, span, name, {})
    first = process.first_result_seconds
    if first is not None:
        witness = process.first_result_witness or Witness.READ
        about = {f"{witness.value} at": place(process.first_result_site)}
        yield _event(process, 0, "i", "first result", about, s="p", cat="result", ts=first * 1e6)


def _slice(
    process: Process, lane: int, span: Span, name: str, about: Mapping[str, object]
) -> _Event:
    microseconds = {
        "ts": span.begin_seconds * 1e6,
        "dur": (span.end_seconds - span.begin_seconds) * 1e6,
    }
    cat = phases.name_of(span.kind)
    return _event(process, lane, "X", name, about, cat=cat, **microseconds)


def _compile(
    function: Function, one: Compile, process: Process, source: SourceLines
) -> Iterator[_Event]:
    threads = [thread.number for thread in process.threads]
    number = 1 + threads.index(one.thread) if one.thread in threads else 0
    about = {
        "defined": function.place and function.place.location,
        "called from": called_from(one),
        "line": source.of(one.user_site or one.site),
        "arguments": signature(one.signature, limit=20),
        "compiled again because": why_again(one),
        "cache": one.cache and ": ".join(filter(None, (one.cache.status, one.cache.reason))),
        "equations": one.equations,
        "constant bytes": one.constant_bytes,
        "stack": " < ".join(place(where) for where in one.stack),
    }
    known = {name: value for name, value in about.items() if value}
    for span in one.stages:
        lane = _LANES * number + 1 + STAGES.index(span.kind)
        yield _slice(process, lane, span, function.name, known)
