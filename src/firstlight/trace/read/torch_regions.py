"""Regions that torch.compile compiled, read from the events of a trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from firstlight.trace.read.event_checks import Event
from firstlight.trace.read.log_events import place_of
from firstlight.trace.read.model import SourceLine, Trace

_RESUMED = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")
_NUMBER_BEFORE = re.compile(r"^\d+/\d+: ")
#: Torch appends the source line of a guard to its text.
_SOURCE_AFTER = re.compile(r"\s{2,}#.*$")
_HIDDEN = re.compile(r"^value-[0-9a-f]{8}$")
_LIMIT = "recompile limit exceeded"
_SIZE = re.compile(r"tensor '(.+?)' size mismatch at index (\d+)")


@dataclass(frozen=True)
class GraphBreak:
    """A line at which torch has to end a graph."""

    reason: str
    explanation: str | None
    hints: tuple[str, ...]
    stack: tuple[SourceLine, ...]  # from the compiled function inwards

    @property
    def place(self) -> SourceLine | None:
        """The innermost line of the user, or of a package if there is none."""
        own = [place for place in self.stack if place.package is None] or self.stack
        return own[-1] if own else None


@dataclass(frozen=True)
class Region:
    """One compile by torch.compile: a function, its rest after a graph break, a backward pass."""

    name: str
    place: SourceLine | None
    process: int
    direction: str  # forward, backward, at run time
    number: str | None  # torch's: frame/compile
    seconds: float
    own_seconds: float  # without what it imported
    backend_seconds: float | None
    restart_seconds: float | None  # discarded tracing, up to the breaks
    user_site: SourceLine | None
    recompile_kind: str | None  # size, dtype, value, …; None: the first
    recompile_detail: str | None
    breaks: tuple[GraphBreak, ...]
    failure: GraphBreak | None  # why it runs uncompiled
    beyond_limit: bool  # not compiled, like all later ones: the recompile limit is reached
    cache_misses: int

    @property
    def resumed_at(self) -> tuple[str, int] | None:
        """Name of the function and line of the break, if this is the rest after a graph break."""
        return _name_and_number(_RESUMED.match(self.name))

    @property
    def resized(self) -> tuple[str, int] | None:
        """The tensor and the dimension whose size made a guard fail."""
        return _name_and_number(_SIZE.search(self.recompile_detail or ""))

    @property
    def readable(self) -> str:
        resumed = self.resumed_at
        name = f"{resumed[0]} from line {resumed[1]} on" if resumed else self.function
        return name if self.direction == "forward" else f"{name}, {self.direction}"

    @property
    def function(self) -> str:
        """The function that the user wrote; for a module of torch.nn, its call."""
        if self.of_torch:
            line = f" called at line {self.user_site.line}" if self.user_site else ""
            return f"module of torch{line}"
        return self.resumed_at[0] if self.resumed_at else self.name

    @property
    def of_torch(self) -> bool:
        """Whether it is torch's code: torch wraps all of its modules in the same function."""
        return self.place is not None and self.place.package == "torch"

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for all compiles of a function."""
        where = self.user_site if self.of_torch else self.place
        return (self.name, where and (where.file, where.line))


def _name_and_number(found: re.Match[str] | None) -> tuple[str, int] | None:
    return (found[1], int(found[2])) if found else None


def regions(trace: Trace) -> tuple[Region, ...]:
    """All regions, in the order of their compiles."""
    return tuple(_region(r) for r in trace.torch_regions if r.get("event") == "torch_region")


def why(region: Region) -> str:
    """What happened to a region, in one line."""
    parts = [f"again: {region.recompile_detail}"] if region.recompile_kind is not None else []
    if region.beyond_limit:
        parts.append("not compiled: the recompile limit is reached")
    elif region.failure is not None:
        parts.append(f"not compiled: {region.failure.reason}{_at(region.failure)}")
    return "; ".join([*parts, *(f"breaks{_at(one)}: {one.reason}" for one in region.breaks)])


def _at(one: GraphBreak) -> str:
    return f" at line {one.place.line}" if one.place else ""


def _region(event: Mapping[str, Any]) -> Region:
    seconds = float(event.get("seconds") or 0.0)
    recompile, failure = event.get("recompile"), event.get("failure")
    frame, compile_ = event.get("frame"), event.get("frame_compile")
    return Region(
        name=str(event.get("name") or "unknown function"),
        place=place_of(event.get("place")),
        process=int(event.get("process") or 0),
        direction=str(event.get("direction")),
        number=None if frame is None else f"{frame}/{compile_}",
        seconds=seconds,
        own_seconds=max(0.0, seconds - float(event.get("imports_seconds") or 0.0)),
        backend_seconds=event.get("backend_seconds"),
        restart_seconds=event.get("restart_seconds"),
        user_site=place_of(event.get("user_site") or event.get("site")),
        recompile_kind=recompile["kind"] if recompile else None,
        recompile_detail=_guard(recompile) if recompile else None,
        breaks=tuple(_graph_break(one, one.get("lines")) for one in event.get("breaks") or ()),
        failure=_graph_break(failure, [failure.get("place")]) if failure else None,
        beyond_limit=_LIMIT in f"{(failure or {}).get('kind')} {_text(failure or {}, 'text')}",
        cache_misses=int(event.get("cache_misses") or 0),
    )


def _text(event: Event, name: str) -> str:
    return str((event.get("static") or {}).get(name) or "")


def _guard(recompile: Event) -> str:
    """`tensor 'x' size mismatch at index 0. expected 3, actual 4`."""
    line = _NUMBER_BEFORE.sub("", _text(recompile, "guard").partition("\n")[0])
    line = _SOURCE_AFTER.sub("", line).strip()
    if not line or _HIDDEN.match(line):
        return f"another {recompile['kind']}"
    return f"{line} does not hold" if recompile["kind"] == "value" else line


def _graph_break(event: Event, lines: Iterable[list[object]] | None) -> GraphBreak:
    text = _text(event, "text")
    found = [line.strip() for line in text.splitlines()]
    first = found[0] if found and not _HIDDEN.match(text) else ""
    explained, hints = (
        [line.removeprefix(label) for line in found if line.startswith(label)]
        for label in ("Explanation: ", "Hint: ")
    )
    return GraphBreak(
        reason=str(event.get("kind") or first or event.get("type") or "unknown reason"),
        explanation=explained[0] if explained else None,
        hints=tuple(hints),
        stack=tuple(place for line in lines or () if (place := place_of(line)) is not None),
    )
