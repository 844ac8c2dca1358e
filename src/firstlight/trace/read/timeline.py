"""What a process did when: intervals that lie within each other, cut into parts that do not.

A compile that starts within an import is a compile, not an import: at any moment the innermost
interval counts. So the parts add up to the time from start to end, whatever was measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firstlight.trace.read.log_events import ProcessLog
from firstlight.trace.read.model import Span

#: Kinds of spans, in the order in which reports show them.
KINDS = ("interpreter", "import", "backend", "trace", "lower", "compile", "wait", "rest", "exit")


@dataclass(frozen=True)
class Interval:
    """Something that took time in a thread; `index` is of the event that told it, if of one."""

    kind: str
    begin_ns: int
    end_ns: int
    label: str
    index: int | None = None


@dataclass(frozen=True)
class Part:
    """A piece of time in which an interval was the innermost; None: no interval at all."""

    begin_ns: int
    end_ns: int
    interval: Interval | None


@dataclass(frozen=True)
class SummedWait:
    """Waits of which only the sum is known, somewhere between two times."""

    begin_ns: int
    end_ns: int
    total_ns: int
    label: str


def parts(intervals: Iterable[Interval], begin_ns: int, end_ns: int) -> list[Part]:
    """The time from begin to end, cut where the innermost interval changes."""
    cut: list[Part] = []
    stack: list[tuple[Interval, int]] = []  # with its end: not beyond that of the one around it
    at = begin_ns

    def until(ns: int) -> None:
        nonlocal at
        ns = min(max(ns, at), end_ns)
        if ns > at:
            cut.append(Part(at, ns, stack[-1][0] if stack else None))
            at = ns

    for interval in sorted(intervals, key=lambda i: (i.begin_ns, -i.end_ns)):
        while stack and stack[-1][1] <= interval.begin_ns:
            until(stack[-1][1])
            stack.pop()
        until(interval.begin_ns)
        limit = stack[-1][1] if stack else end_ns
        stack.append((interval, min(interval.end_ns, limit)))
    while stack:
        until(stack[-1][1])
        stack.pop()
    until(end_ns)
    return cut


def intervals_by_thread(log: ProcessLog, end_ns: int) -> Mapping[int, list[Interval]]:
    """All that the log tells with begin and end. Without a thread: of the main one."""
    main = main_thread(log)
    found: dict[int, list[Interval]] = defaultdict(list)
    for index, event in enumerate(log.events):
        for thread, interval in _of_event(index, event):
            found[thread or main].append(interval)
    for begun in unfinished(log):
        name = str(begun["name"])
        found[begun.get("thread") or main].append(
            Interval("compile", begun["ns"], end_ns, f"{name}, which did not end")
        )
    end, exited = log.first("end"), log.first("exited")
    if end and exited:  # after the last of its own code, as seen by who started it
        found[main].append(Interval("exit", end["ns"], exited["ns"], "Python ends"))
    recording = int(log.head["recording_ns"])
    if log.head.get("whole", True):
        found[main].append(Interval("interpreter", log.start_ns, recording, "Python starts"))
    return found


def main_thread(log: ProcessLog) -> int:
    """The thread that the process began with; in logs that do not tell, that of the first stage."""
    told = log.head.get("thread")
    if told is None:
        stage = log.first("stage")
        told = stage.get("thread") if stage else 0
    return int(told or 0)


def unfinished(log: ProcessLog) -> list[dict[str, Any]]:
    """Compiles that began and of which nothing more was heard."""
    over = {(e["call"], e["begin_ns"]) for e in log.of("stage") if e["stage"] == "compile"}
    return [e for e in log.of("begin") if (e["call"], e["ns"]) not in over]


def summed_waits(log: ProcessLog) -> list[SummedWait]:
    """The waits of the main thread whose begins and ends were not kept one by one."""
    main = main_thread(log)
    found = []
    for event in log.of("waits"):
        exact: dict[int, int] = defaultdict(int)
        for begin, end, number in event.get("long") or ():
            exact[number] += end - begin
        for number, one in enumerate(event["sites"]):
            left = one["ns"] - exact[number]
            if left > 0 and (one.get("thread") or main) == main:
                found.append(SummedWait(one["span"][0], one["span"][1], left, _at(one)))
    return found


def spans(pieces: Sequence[Part], waits: Sequence[SummedWait], start_ns: int) -> tuple[Span, ...]:
    """The timeline; waits that are known in sum only take their share of the rest around them."""
    kept = [(p.begin_ns, p.end_ns, *_named(p)) for p in pieces]
    for wait in waits:
        kept = _share(kept, wait)
    return tuple(
        Span(kind, (begin - start_ns) / 1e9, (end - start_ns) / 1e9, label)
        for begin, end, kind, label in kept
    )


def phases(timeline: Iterable[Span]) -> dict[str, float]:
    """Seconds by kind of span."""
    sums = dict.fromkeys(KINDS, 0.0)
    for span in timeline:
        sums[span.kind] = sums.get(span.kind, 0.0) + span.end_seconds - span.begin_seconds
    return sums


def _of_event(index: int, event: Mapping[str, Any]) -> Iterable[tuple[int | None, Interval]]:
    """Intervals with their threads; None: not told."""
    kind, thread = event["event"], event.get("thread")
    if kind == "imports" and event["modules"]:
        begin = min(m[1] for m in event["modules"])
        end = max(m[1] + m[2] for m in event["modules"])
        outermost = max(event["modules"], key=lambda m: m[2])[0]
        yield thread, Interval("import", begin, end, outermost)
    elif kind == "backend":
        name = str(event["platform"])
        yield thread, Interval("backend", event["begin_ns"], event["end_ns"], name)
    elif kind == "stage":
        about = (event["stage"], event["begin_ns"], event["end_ns"], event["name"])
        yield thread, Interval(*about, index)
    elif kind == "torch_region":
        name = str(event.get("name"))
        yield thread, Interval("compile", event["begin_ns"], event["end_ns"], name)
    elif kind == "waits":
        for begin, end, number in event.get("long") or ():
            if number >= len(event["sites"]):
                continue  # no recorder of ours writes that
            one = event["sites"][number]
            yield one.get("thread"), Interval("wait", begin, end, _at(one))


def _at(wait: Mapping[str, Any]) -> str:
    for key in ("user_site", "site"):
        if wait.get(key) and wait[key][0]:
            return f"{wait[key][0]}:{wait[key][1]}"
    return "unknown line"


def _named(part: Part) -> tuple[str, str]:
    return (part.interval.kind, part.interval.label) if part.interval else ("rest", "")


_Piece = tuple[int, int, str, str]


def _share(kept: list[_Piece], wait: SummedWait) -> list[_Piece]:
    """Give a wait its part of every piece of rest between its first and its last moment."""
    inside = [
        min(end, wait.end_ns) - max(begin, wait.begin_ns)
        for begin, end, kind, _ in kept
        if kind == "rest" and begin < wait.end_ns and end > wait.begin_ns
    ]
    room = sum(inside)
    share = min(wait.total_ns / room, 1.0) if room else 0.0
    result: list[_Piece] = []
    for begin, end, kind, label in kept:
        low, high = max(begin, wait.begin_ns), min(end, wait.end_ns)
        if kind != "rest" or high <= low or not share:
            result.append((begin, end, kind, label))
            continue
        middle = high - round((high - low) * share)
        pieces = (
            (begin, middle, "rest", label),
            (middle, high, "wait", wait.label),
            (high, end, "rest", label),
        )
        result += [piece for piece in pieces if piece[1] > piece[0]]
    return result
