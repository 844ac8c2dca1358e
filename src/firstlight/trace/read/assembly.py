"""Assembles a `Trace` from logs: every compile with its reason, and where the time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from firstlight.present.quantities import counted
from firstlight.trace.read import model, phases, recompiles, timeline
from firstlight.trace.read.compiles import FunctionKey, compiles_of
from firstlight.trace.read.event_checks import Event
from firstlight.trace.read.first_result import first_output, first_read, first_result
from firstlight.trace.read.imported_packages import packages
from firstlight.trace.read.log_events import ProcessLog, last_run, place_of, read_logs

_Compiles = list[tuple[FunctionKey, model.Compile]]


def read_folder(folder: Path) -> model.Trace:
    """The trace of the last run in a folder, without findings. TraceLogError if there is none."""
    logs, earlier = last_run(read_logs(Path(folder)))
    trace = assemble(logs)
    if not earlier:
        return trace
    problem = (
        f"runs: the folder also holds {counted(earlier, 'earlier run')}, not in this "
        "report; give every run its own folder"
    )
    first, *others = trace.processes
    first = replace(first, problems=(*first.problems, problem))
    return replace(trace, processes=(first, *others))


def assemble(logs: Sequence[ProcessLog]) -> model.Trace:
    """A trace without findings, from the logs of its processes in their order."""
    begin = logs[0].start_of_day_ns if logs else None
    logs = [replace(log, program_start_of_day_ns=begin) for log in logs]
    read = [_read_process(number, log, logs) for number, log in enumerate(logs)]
    functions = _functions(pair for _, compiles in read for pair in compiles)
    results = [p.first_result_seconds for p, _ in read if p.first_result_seconds is not None]
    return model.Trace(
        processes=tuple(process for process, _ in read),
        functions=functions,
        findings=(),
        time_to_first_result_seconds=min(results, default=None),
        compile_count=sum(c.compiled for f in functions for c in f.compiles),
        # An operation of JAX is rightly compiled once per shape: only the recompiles of functions
        # that somebody wrote count.
        recompiles=sum(f.recompiles for f in functions if not f.library),
        torch_regions=tuple(
            {"process": number, **event}
            for number, log in enumerate(logs)
            for event in log.events
            if event["event"].startswith("torch_")
        ),
    )


def _read_process(
    number: int, log: ProcessLog, logs: Sequence[ProcessLog]
) -> tuple[model.Process, _Compiles]:
    end = log.first("end") or {}
    end_ns = log.last_ns
    pieces = {
        thread: timeline.parts(intervals, log.start_ns, end_ns)
        for thread, intervals in timeline.intervals_by_thread(log, end_ns).items()
    }
    main = pieces.get(timeline.main_thread(log)) or timeline.parts((), log.start_ns, end_ns)
    spans = timeline.spans(main, timeline.summed_waits(log), log.origin_ns)
    unfinished = timeline.unfinished(log)
    first = first_result(log)
    process = model.Process(
        number=number,
        pid=int(log.head["pid"]),
        rank=log.head.get("rank"),
        command=tuple(log.head.get("command") or ()),
        python=str(log.head.get("python")),
        jax_version=_version("jax", log, logs),
        device_use=_device_use(log),
        torch_version=_version("torch", log, logs),
        wall_seconds=(end_ns - log.start_ns) / 1e9 if end or log.first("exited") else None,
        first_result_seconds=log.seconds_at(first.ns) if first else None,
        first_result_site=first.site if first else None,
        first_result_witness=first.witness if first else None,
        first_read=first_read(log),
        first_output=first_output(log),
        first_result_pattern=log.head.get("first_result_pattern"),
        phases_seconds=phases.sums(spans),
        timeline=spans,
        imports=packages(log),
        waits=_waits(log),
        short_waits=sum(e["short"] for e in log.of("waits")),
        short_waits_seconds=sum(e["short_ns"] for e in log.of("waits")) / 1e9,
        own_seconds=end.get("own_ns", 0) / 1e9,
        unfinished=str(unfinished[-1]["name"]) if unfinished else None,
        problems=_problems(log, end),
        incomplete=_incomplete(log, end),
        whole=bool(log.head.get("whole", True)),
        starts_at_seconds=log.seconds_at(log.start_ns),
        started_at=log.start_of_day_ns / 1e9,
        threads=_other_threads(log, pieces),
    )
    exclusive: dict[int, int] = defaultdict(int)
    for part in (part for cut in pieces.values() for part in cut):
        if part.interval is not None and part.interval.index is not None:
            exclusive[part.interval.index] += part.end_ns - part.begin_ns
    return process, list(compiles_of(log, number, exclusive, first))


def _other_threads(
    log: ProcessLog, pieces: Mapping[int, Sequence[timeline.Part]]
) -> tuple[model.Thread, ...]:
    """Timelines of the threads other than the main one, by their begin."""
    names = {e["thread"]: e["thread_name"] for e in log.of("begin") if e.get("thread_name")}
    busy = {thread: [part for part in cut if part.interval] for thread, cut in pieces.items()}
    busy.pop(timeline.main_thread(log), None)
    found = [(t, timeline.spans(cut, (), log.origin_ns)) for t, cut in busy.items() if cut]
    found.sort(key=lambda pair: pair[1][0].begin_seconds)
    return tuple(
        model.Thread(thread, str(names.get(thread, f"thread {number}")), spans)
        for number, (thread, spans) in enumerate(found, start=2)
    )


def _functions(pairs: Iterable[tuple[FunctionKey, model.Compile]]) -> tuple[model.Function, ...]:
    grouped: dict[FunctionKey, list[model.Compile]] = defaultdict(list)
    for key, one in pairs:
        grouped[key].append(one)
    functions = (
        model.Function(k.name, k.place, k.module, k.library, compiles, k.kind)
        for k, all_of in grouped.items()
        for compiles in [recompiles.with_reasons(all_of, k.library)]
    )
    return tuple(sorted(functions, key=lambda f: -f.seconds))


def _device_use(log: ProcessLog) -> model.DeviceUse | None:
    event = log.first("device_use")
    if event is None:
        return None
    return model.DeviceUse(
        platform=str(event["platform"]),
        begin_seconds=log.seconds_at(event["begin_ns"]),
        seconds=(event["end_ns"] - event["begin_ns"]) / 1e9,
        reserves_memory=bool(event["reserves_memory"]),
    )


def _version(package: str, log: ProcessLog, logs: Sequence[ProcessLog]) -> str | None:
    event = log.first(package)
    if event is None and not log.head.get("whole", True):
        # A fork inherits its parent's imports, and has no event for them.
        parents = [other for other in logs if other.head["pid"] == log.head.get("parent")]
        event = parents[0].first(package) if parents and parents[0] is not log else None
    return str(event["version"]) if event else None


def _problems(log: ProcessLog, end: Event) -> tuple[str, ...]:
    reported = {str(p) for e in (*log.of("problem"), end) for p in e.get("problems", ())}
    problems = sorted(reported) + _missing_events(log)
    if log.unreadable_lines:
        lines = f"{counted(log.unreadable_lines, 'line')} cannot be read"
        problems.append(f"log: {lines}: cut off by a kill or a full disk, or damaged")
    return tuple(problems)


def _incomplete(log: ProcessLog, end: Event) -> str | None:
    """Why the log may lack compiles; None if it is complete."""
    exited = log.first("exited")
    if end.get("lost"):
        return f"{counted(end['lost'], 'event')} could not be written"
    if log.unreadable_lines and not end and exited is None:
        return "the log breaks off within a line, as on a full disk"
    # A kill may cut off one line, the last; then none other is missing.
    if log.unreadable_lines > ((exited or {}).get("signal") is not None):
        return f"{counted(log.unreadable_lines, 'line')} of the log cannot be read"
    return next((e["missing"] for e in log.of("problem") if e.get("missing")), None)


def _missing_events(log: ProcessLog) -> list[str]:
    """Expected events that did not come: this JAX may have other names for them."""
    stages = {event["stage"] for event in log.of("stage")}
    result = log.first("first_result") is not None
    if log.first("jax") is None or not log.head.get("whole", True):
        return []  # a recording of a part may lack the begin of something
    if not stages:
        # A program may compile nothing, but then it hardly has a result.
        silent = "events: JAX reported no compile; this version may name its events differently"
        return [silent] if result else []
    words = {"trace": "tracing", "lower": "lowering", "compile": "compiling"}
    no_calls = "calls: this JAX does not show which calls made it compile, nor for what arguments"
    unknown = all(event["call"] is None for event in log.of("stage"))
    return [no_calls] * unknown + [
        f"events: this JAX reported nothing about {words[stage]}: its seconds are unknown, "
        "and are counted as everything else"
        for number, stage in enumerate(model.STAGES)
        # A program that ended early has no later stages.
        if stage not in stages and (result or stages & set(model.STAGES[number + 1 :]))
    ]


def _waits(log: ProcessLog) -> tuple[model.Wait, ...]:
    """Waits by line over the whole run, the longest first."""
    grouped = defaultdict[tuple[model.SourceLine | None, ...], list[Event]](list)
    for event in log.of("waits"):
        for one in event["sites"]:
            grouped[place_of(one["site"]), place_of(one["user_site"])].append(one)
    found = [
        model.Wait(
            site,
            user,
            sum(one["n"] for one in all_of),
            sum(one["ns"] for one in all_of) / 1e9,
            log.seconds_at(min(one["span"][0] for one in all_of)),
            log.seconds_at(max(one["span"][1] for one in all_of)),
        )
        for (site, user), all_of in grouped.items()
    ]
    return tuple(sorted(found, key=lambda w: -w.seconds))
