"""Logs of a trace as they lie on disk: a file a process, a line an event, ending anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from firstlight.errors import FirstlightError
from firstlight.trace.read.event_checks import MOST_TEXT, checked, cut
from firstlight.trace.read.model import SourceLine
from firstlight.trace.record.log_format import SCHEMA, VERSION

#: Keys that hold times of their own, beside those of an event.
_TIMES = ("ns", "begin_ns", "end_ns", "recording_ns")


class TraceLogError(FirstlightError):
    """A log cannot be read."""


class NotRecordedError(FirstlightError):
    """The program cannot be, or was not, recorded."""


@dataclass(frozen=True)
class ProcessLog:
    """What one process wrote: its first event, and all that follow."""

    head: dict[str, Any]
    events: list[dict[str, Any]] = field(default_factory=list)
    unreadable_lines: int = 0
    program_start_of_day_ns: int | None = None  # of the first process; None: this one is it

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        return (event for event in self.events if event["event"] == kind)

    def first(self, kind: str) -> dict[str, Any] | None:
        """Of a log that has been read: it is looked through once."""
        return self._first_of_kind.get(kind)

    @cached_property
    def _first_of_kind(self) -> dict[str, dict[str, Any]]:
        return {event["event"]: event for event in reversed(self.events)}

    @property
    def start_ns(self) -> int:
        started = self.head.get("started_ns")
        return int(self.head["recording_ns"] if started is None else started)

    @property
    def last_ns(self) -> int:
        """When it was last heard of."""
        times = [e[key] for e in self.events for key in _TIMES if isinstance(e.get(key), int)]
        times += [m[1] + m[2] for e in self.of("imports") for m in e["modules"]]
        return max(map(int, [self.head["recording_ns"], *times]))

    @property
    def start_of_day_ns(self) -> int:
        """The start by the clock on the wall, which machines share; monotonic clocks they do not.

        Without it (a log by other hands) the monotonic clock has to do.
        """
        monotonic, wall = self.head.get("clock") or (0, 0)
        return self.start_ns + int(wall) - int(monotonic)

    @property
    def origin_ns(self) -> int:
        """The start of the program, from which all moments are counted, on this process's clock."""
        if self.program_start_of_day_ns is None:
            return self.start_ns
        return self.start_ns - (self.start_of_day_ns - self.program_start_of_day_ns)


def place_of(told: Sequence[Any] | None) -> SourceLine | None:
    """[file, line, function] or [file, line] as a place."""
    if not told or told[0] is None:
        return None
    return SourceLine(str(told[0]), int(told[1]), told[2] if len(told) > 2 else None)


def read_logs(folder: Path) -> list[ProcessLog]:
    """All processes that wrote into a folder, by their start. TraceLogError where there is none."""
    if not folder.exists():
        raise TraceLogError(f"{folder}: there is no such folder. Name the folder of a trace.")
    if not folder.is_dir():
        raise TraceLogError(
            f"{folder} is a file. Name the folder that its logs (*.jsonl) are in, "
            f"{folder.parent} perhaps."
        )
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise TraceLogError(
            f"{folder}: no trace here (no file *.jsonl). The program may have ended before Python "
            "started, or runs in a Python that has no Firstlight installed."
        )
    logs = [log for path in files for log in _read_file(path)]
    if not logs:
        raise TraceLogError(
            f"{folder}: its files hold no event of Firstlight. If the program was killed at once, "
            "nothing was written yet; trace it again."
        )
    return sorted(logs, key=lambda log: log.start_of_day_ns)


def _read_file(path: Path) -> list[ProcessLog]:
    # A process that replaced itself (exec) continues in the same file with a new first event.
    logs: list[ProcessLog] = []
    unreadable = 0
    for line in path.read_text("utf-8", errors="replace").splitlines():
        event = parsed(line)
        if event is None:
            unreadable += 1
        elif event["event"] == "process":
            _check_version(event, path)
            logs.append(ProcessLog(event))
        elif logs:
            logs[-1].events.append(event)
    if logs and unreadable:
        last = logs[-1]
        logs[-1] = ProcessLog(last.head, last.events, unreadable)
    return logs


def parsed(line: str) -> dict[str, Any] | None:
    """The event of a line; None: it cannot be read."""
    try:
        event = json.loads(line)
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            return None
        # What torch said is shown as it is; of all else only what has been looked at.
        if len(line) > MOST_TEXT or event["event"].startswith("torch_"):
            event = cut(event)
    except (ValueError, RecursionError):  # cut off by a kill, or made by other hands
        return None
    # Of a newer log only the version has to be understood.
    newer = event["event"] == "process" and not _is_ours(event)
    return event if newer else checked(event)


def _is_ours(head: dict[str, Any]) -> bool:
    """Whether a first event is one that this Firstlight understands."""
    return head.get("schema") == SCHEMA and head.get("version", 0) in range(VERSION + 1)


def _check_version(head: dict[str, Any], path: Path) -> None:
    if head.get("schema") != SCHEMA:
        shown = repr(head.get("schema"))[:40]
        raise TraceLogError(f"{path}: not a log of a trace (schema {shown}).")
    version = head.get("version", 0)
    if not isinstance(version, int):
        raise TraceLogError(f"{path}: not a log of a trace (version {repr(version)[:40]}).")
    if version > VERSION:
        raise TraceLogError(
            f"{path}: version {head['version']} of the log was written by a newer Firstlight; this "
            f"one reads up to {VERSION}. Update Firstlight to read it."
        )
