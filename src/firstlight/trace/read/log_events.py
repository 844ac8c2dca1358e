"""The logs of a trace on disk: a file per process, a line per event, perhaps cut off anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from firstlight.errors import FirstlightError
from firstlight.trace.read.event_checks import MAX_TEXT, Event, checked, cut
from firstlight.trace.read.model import SourceLine
from firstlight.trace.record.log_format import SCHEMA, VERSION

_TIMES = ("ns", "begin_ns", "end_ns", "recording_ns")


class TraceLogError(FirstlightError):
    """A log cannot be read."""


class NotRecordedError(FirstlightError):
    """The program cannot be, or was not, recorded."""


@dataclass(frozen=True)
class ProcessLog:
    """The events of one process: the first, which describes the process, and all others."""

    head: Event
    events: list[Event] = field(default_factory=list)
    unreadable_lines: int = 0
    program_start_of_day_ns: int | None = None  # of the first process; None: this one is it

    def of(self, kind: str) -> Iterator[Event]:
        return (event for event in self.events if event["event"] == kind)

    def first(self, kind: str) -> Event | None:
        """The first event of a kind. Only for complete logs: the search is cached."""
        return self._first_of_kind.get(kind)

    @cached_property
    def _first_of_kind(self) -> dict[str, Event]:
        return {event["event"]: event for event in reversed(self.events)}

    @property
    def start_ns(self) -> int:
        started = self.head.get("started_ns")
        return int(self.head["recording_ns"] if started is None else started)

    @property
    def last_ns(self) -> int:
        """The latest moment in the log."""
        times = [e[key] for e in self.events for key in _TIMES if isinstance(e.get(key), int)]
        times += [m[1] + m[2] for e in self.of("imports") for m in e["modules"]]
        return max(map(int, [self.head["recording_ns"], *times]))

    @property
    def start_of_day_ns(self) -> int:
        """The start by the wall clock, which machines share, unlike monotonic clocks."""
        monotonic, wall = self.head.get("clock") or (0, 0)
        return self.start_ns + int(wall) - int(monotonic)

    @property
    def end_of_day_ns(self) -> int:
        return self.start_of_day_ns + self.last_ns - self.start_ns

    @property
    def origin_ns(self) -> int:
        """The start of the program, the origin of all moments, on this process's clock."""
        if self.program_start_of_day_ns is None:
            return self.start_ns
        return self.start_ns - (self.start_of_day_ns - self.program_start_of_day_ns)

    def seconds_at(self, ns: int) -> float:
        """A moment of this process in seconds from the start of the program."""
        return (ns - self.origin_ns) / 1e9


def place_of(value: Sequence[Any] | None) -> SourceLine | None:
    """[file, line, function] or [file, line] as a `SourceLine`."""
    if not value or value[0] is None:
        return None
    return SourceLine(str(value[0]), int(value[1]), value[2] if len(value) > 2 else None)


def read_logs(folder: Path) -> list[ProcessLog]:
    """The logs of all processes in a folder, by their start. TraceLogError if there are none."""
    if not folder.exists():
        raise TraceLogError(f"{folder}: there is no such folder. Name the folder of a trace.")
    if not folder.is_dir():
        raise TraceLogError(
            f"{folder} is a file. Name the folder that contains the logs (*.jsonl), "
            f"perhaps {folder.parent}."
        )
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise TraceLogError(
            f"{folder}: no trace here (no file *.jsonl). The program may have ended before Python "
            "started, or may run in a Python without Firstlight."
        )
    logs = [log for path in files for log in _read_file(path)]
    if not logs:
        raise TraceLogError(
            f"{folder}: its files contain no event of Firstlight. If the program was killed at "
            "once, nothing had been written; trace it again."
        )
    return sorted(logs, key=lambda log: log.start_of_day_ns)


def _read_file(path: Path) -> list[ProcessLog]:
    # A process that replaced itself (exec) continues in the same file with a new first event.
    logs: list[ProcessLog] = []
    events = [parsed(line) for line in path.read_text("utf-8", errors="replace").splitlines()]
    for event in events:
        if event is not None and event["event"] == "process":
            _check_version(event, path)
            logs.append(ProcessLog(event))
        elif event is not None and logs:
            logs[-1].events.append(event)
    if logs:
        logs[-1] = ProcessLog(logs[-1].head, logs[-1].events, events.count(None))
    return logs


def parsed(line: str) -> Event | None:
    """The event of a line; None if it is not valid."""
    try:
        event = json.loads(line)
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            return None
        # Reports show torch's texts unchecked, so these are shortened too.
        if len(line) > MAX_TEXT or event["event"].startswith("torch_"):
            event = cut(event)
    except (ValueError, RecursionError):  # cut off by a kill, or not written by us
        return None
    # Of another or newer format, only the schema and the version need to be valid.
    ours = event.get("schema") == SCHEMA and event.get("version", 0) in range(VERSION + 1)
    return event if event["event"] == "process" and not ours else checked(event)


def _check_version(head: Event, path: Path) -> None:
    schema, version = head.get("schema"), head.get("version", 0)
    if schema != SCHEMA:
        raise TraceLogError(f"{path}: not a log of a trace (schema {repr(schema)[:40]}).")
    if not isinstance(version, int):
        raise TraceLogError(f"{path}: not a log of a trace (version {repr(version)[:40]}).")
    if version > VERSION:
        raise TraceLogError(
            f"{path}: a newer Firstlight wrote this log (version {version}); this one reads "
            f"up to version {VERSION}. Update Firstlight to read it."
        )


def last_run(logs: Sequence[ProcessLog]) -> tuple[list[ProcessLog], int]:
    """The logs of the last run, and the number of earlier runs. logs: by their start.
    Processes belong to one run if they overlap, started one another, or are ranks of a job."""
    runs: list[list[ProcessLog]] = []
    for log in logs:
        if runs and _belongs(log, runs[-1]):
            runs[-1].append(log)
        else:
            runs.append([log])
    return (runs[-1], len(runs) - 1) if runs else ([], 0)


def _belongs(log: ProcessLog, run: Sequence[ProcessLog]) -> bool:
    if log.start_of_day_ns <= max(other.end_of_day_ns for other in run):
        return True
    if any(_started(other, log) for other in run):
        return True
    rank = log.head.get("rank")
    return rank is not None and all(other.head.get("rank") not in (None, rank) for other in run)


def _started(other: ProcessLog, log: ProcessLog) -> bool:
    """Whether `other` started this process, or became it (exec) and therefore has no end."""
    pid = other.head["pid"]
    return bool(
        pid == log.head.get("parent") or (pid == log.head["pid"] and other.first("end") is None)
    )
