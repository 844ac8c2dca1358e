"""The timeline of a process: nested intervals, cut into parts that do not overlap.

At any moment the innermost interval counts: a compile within an import is a compile. So the parts
always add up to the time from start to end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from firstlight.trace.read.event_checks import Event
from firstlight.trace.read.log_events import ProcessLog
from firstlight.trace.read.model import Span


@dataclass(frozen=True)
class Interval:
    """Something that took time in a thread. index: of its event in the log, for stages."""

    kind: str
    begin_ns: int
    end_ns: int
    label: str
    index: int | None = None


@dataclass(frozen=True)
class Part:
    """A period with the innermost interval in it; None: no interval."""

    begin_ns: int
    end_ns: int
    interval: Interval | None


@dataclass(frozen=True)
class SummedWait:
    """Waits between two moments of which only the sum is known."""

    begin_ns: int
    end_ns: int
    total_ns: int
    label: str


def parts(intervals: Iterable[Interval], begin_ns: int, end_ns: int) -> list[Part]:
    """The period from begin to end, cut where the innermost interval changes."""
    cut: list[Part] = []
    stack: list[tuple[Interval, int]] = []  # with its end, at most that of the one around it
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
    """Everything in the log with a begin and an end; without a thread, in the main one."""
    main = main_thread(log)
    found: dict[int, list[Interval]] = defaultdict(list)
    for index, event in enumerate(log.events):
        for thread, interval in _of_event(index, event):
            found[thread or main].append(interval)
    for begun in unfinished(log):
        label = f"{begun['name']}, which did not end"
        interval = Interval("compile", begun["ns"], end_ns, label)
        found[begun.get("thread") or main].append(interval)
    end, exited = log.first("end"), log.first("exited")
    if end and exited:  # the interpreter's shutdown, as seen by the parent
        found[main].append(Interval("exit", end["ns"], exited["ns"], "Python ends"))
    if log.head.get("whole", True):
        recording = int(log.head["recording_ns"])
        found[main].append(Interval("interpreter", log.start_ns, recording, "Python starts"))
    return found


def main_thread(log: ProcessLog) -> int:
    """The main thread."""
    return int(log.head.get("thread") or 0)


def unfinished(log: ProcessLog) -> list[Event]:
    """`begin` events of compiles that did not end."""
    over = {(e["call"], e["begin_ns"]) for e in log.of("stage") if e["stage"] == "compile"}
    return [e for e in log.of("begin") if (e["call"], e["ns"]) not in over]


def summed_waits(log: ProcessLog) -> list[SummedWait]:
    """The waits of the main thread that were not recorded one by one."""
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
    """The timeline; summed waits take a proportional share of the rest around them."""
    kept: list[_Piece] = []
    for part in pieces:
        kind, label = (part.interval.kind, part.interval.label) if part.interval else ("rest", "")
        kept.append((part.begin_ns, part.end_ns, kind, label))
    for wait in waits:
        kept = list(_share(kept, wait))
    return tuple(
        Span(kind, (begin - start_ns) / 1e9, (end - start_ns) / 1e9, label)
        for begin, end, kind, label in kept
    )


_KINDS = {"backend": "backend", "device_use": "backend", "torch_region": "compile"}


def _of_event(index: int, event: Event) -> Iterator[tuple[int | None, Interval]]:
    """Intervals with their threads (None: unknown)."""
    kind, thread = event["event"], event.get("thread")
    if kind == "imports" and event["modules"]:
        begin = min(m[1] for m in event["modules"])
        end = max(m[1] + m[2] for m in event["modules"])
        outermost = max(event["modules"], key=lambda m: m[2])[0]
        yield thread, Interval("import", begin, end, outermost)
    elif kind in ("backend", "device_use", "stage", "torch_region"):
        label = str(event["platform"] if "platform" in event else event.get("name"))
        kind = _KINDS.get(kind) or event["stage"]
        which = index if event["event"] == "stage" else None
        yield thread, Interval(kind, event["begin_ns"], event["end_ns"], label, which)
    elif kind == "waits":
        for begin, end, number in event.get("long") or ():
            if number < len(event["sites"]):
                one = event["sites"][number]
                yield one.get("thread"), Interval("wait", begin, end, _at(one))


def _at(wait: Event) -> str:
    places = (wait["user_site"], wait["site"])
    return next((f"{p[0]}:{p[1]}" for p in places if p and p[0]), "unknown line")


_Piece = tuple[int, int, str, str]


def _share(kept: list[_Piece], wait: SummedWait) -> Iterator[_Piece]:
    """Give a wait its share of every piece of rest between its first and last moment."""
    inside = [
        min(end, wait.end_ns) - max(begin, wait.begin_ns)
        for begin, end, kind, _ in kept
        if kind == "rest" and begin < wait.end_ns and end > wait.begin_ns
    ]
    room = sum(inside)
    share = min(wait.total_ns / room, 1.0) if room else 0.0
    for begin, end, kind, label in kept:
        low, high = max(begin, wait.begin_ns), min(end, wait.end_ns)
        if kind != "rest" or high <= low or not share:
            yield begin, end, kind, label
            continue
        middle = high - round((high - low) * share)
        pieces = (
            (begin, middle, "rest", label),
            (middle, high, "wait", wait.label),
            (high, end, "rest", label),
        )
        yield from (piece for piece in pieces if piece[1] > piece[0])
