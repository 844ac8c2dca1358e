"""Calls and stages of a log, put together: one `Compile` for every program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firstlight.telemetry.events import bare_name
from firstlight.trace.read.cache_use import cache_use
from firstlight.trace.read.first_result import FirstResult
from firstlight.trace.read.log_events import ProcessLog, place_of
from firstlight.trace.read.model import (
    STAGES,
    Argument,
    ByIdentity,
    Compile,
    Constant,
    Identity,
    Signature,
    SourceLine,
    Span,
)

#: Objects of one function that one line may call without being told to make them.
_MOST_COPIES = 2


@dataclass(frozen=True)
class FunctionKey:
    """What makes two compiles ones of the same function: its name, place, and all of its code."""

    name: str
    place: SourceLine | None
    module: str | None
    library: bool
    kind: str | None
    made_of: int | None = None  # a number for all code that is in it and around it
    copy: int = 0  # of several objects that are made of the same, and are no disease


@dataclass
class _Group:
    """The stages of one program, as they come."""

    call: Mapping[str, Any] | None
    stages: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def last(self) -> str | None:
        return self.stages[-1][1]["stage"] if self.stages else None


def compiles_of(
    log: ProcessLog,
    process: int,
    exclusive_ns: Mapping[int, int],
    first: FirstResult | None,
) -> Iterator[tuple[FunctionKey, Compile]]:
    """Every program that was traced, lowered or compiled, by its begin.

    exclusive_ns: what each stage event took without all that ran inside of it. first: the first
    result of the process.
    """
    groups = sorted(_groups(log), key=lambda g: g.stages[0][1]["begin_ns"])
    keys = [_key(group) for group in groups]
    # Of some executables the size is told later than the end of their compile.
    sizes = {(e["thread"], e["begin_ns"]): e["executable_bytes"] for e in log.of("size")}
    for key, copy, group in zip(keys, _copies(keys, groups), groups, strict=True):
        yield replace(key, copy=copy), _compile(group, log, process, exclusive_ns, sizes, first)


def _groups(log: ProcessLog) -> Iterable[_Group]:
    """Stages that belong together: of one call, in order. A stage that comes again is another."""
    calls = {event["call"]: event for event in log.of("call")}
    open_groups: dict[Any, _Group] = {}
    groups: list[_Group] = []
    for index, event in enumerate(log.events):
        if event["event"] != "stage" or event.get("stage") not in STAGES:
            continue
        number = event.get("call")
        which = number if number is not None else (event["thread"], bare_name(event["name"]))
        group = open_groups.get(which)
        order = STAGES.index(event["stage"])
        if group is None or (group.last and STAGES.index(group.last) >= order):
            group = open_groups[which] = _Group(calls.get(number))
            groups.append(group)
        group.stages.append((index, event))
    return groups


def _copies(keys: Sequence[FunctionKey], groups: Sequence[_Group]) -> list[int]:
    """Which of the objects of a function each program is of; 0 where all are taken for one."""
    by_key: dict[FunctionKey, list[Mapping[str, Any]]] = defaultdict(list)
    for key, group in zip(keys, groups, strict=True):
        if group.call is not None and group.last == "compile" and not key.library:
            by_key[key].append(group.call)
    numbers: dict[tuple[FunctionKey, Any], int] = {}
    for key, calls in by_key.items():
        if not _are_made_again(calls):
            objects = dict.fromkeys(call.get("object") for call in calls)
            numbers |= {(key, one): number for number, one in enumerate(objects)}
    return [
        numbers.get((key, (group.call or {}).get("object")), 0)
        for key, group in zip(keys, groups, strict=True)
    ]


def _are_made_again(calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one call in the source is of a new object of the function each time that it runs.

    Two models have a step each, though both of the same code, and one call may be of both. Three
    objects are a habit, and so are two that belong to the same object or to none.
    """
    at_call: dict[Any, dict[Any, tuple[Any, ...]]] = defaultdict(dict)
    for call in calls:
        # Not the line alone: two calls may be on it, each of a function by its name.
        sites = {tuple(call.get(name) or ()) for name in ("site", "user_site")} - {()}
        for site in sites:
            where = site, call.get("instruction")
            at_call[where][call.get("object")] = tuple(call.get("belongs_to") or ())
    for objects in at_call.values():
        if len(objects) > _MOST_COPIES or len(set(objects.values())) < len(objects):
            return True
    return False


def _key(group: _Group) -> FunctionKey:
    name = bare_name(group.stages[0][1]["name"])
    if group.call is None:
        return FunctionKey(name, None, None, False, None)
    about = group.call["function"]
    return FunctionKey(
        str(about.get("name") or name),
        place_of(about.get("place")),
        # A process that was spawned has the main module by another name.
        "__main__" if about.get("module") == "__mp_main__" else about.get("module"),
        bool(group.call.get("library")),
        about.get("kind"),
        about.get("made_of"),
    )


def _compile(
    group: _Group,
    log: ProcessLog,
    process: int,
    exclusive_ns: Mapping[int, int],
    sizes: Mapping[tuple[int, int], int],
    first: FirstResult | None,
) -> Compile:
    start = log.origin_ns
    stages = {event["stage"]: event for _, event in group.stages}
    seconds: dict[str, float | None] = dict.fromkeys(STAGES)
    for index, event in group.stages:
        seconds[event["stage"]] = exclusive_ns.get(index, event["own_ns"]) / 1e9
    lowered, compiled = stages.get("lower", {}), stages.get("compile")
    call, lines = group.call or {}, lowered.get("lines", ())
    return Compile(
        name=_key(group).name,
        process=process,
        thread=int(group.stages[0][1].get("thread") or 0),
        begin_seconds=(group.stages[0][1]["begin_ns"] - start) / 1e9,
        end_seconds=(group.stages[-1][1]["end_ns"] - start) / 1e9,
        stage_seconds=seconds,
        signature=_signature(call, compiled or {}) if group.call else None,
        site=place_of(call.get("site")),
        user_site=place_of(call.get("user_site")),
        entry_site=place_of(call.get("entry_site")),
        compiled=compiled is not None,
        cache=cache_use(compiled, log.head.get("rank")) if compiled else None,
        equations=lowered.get("equations"),
        equation_lines=tuple((SourceLine(one[0], one[1]), one[2]) for one in lines),
        equation_repeats=tuple(one[3] if len(one) > 3 else 1 for one in lines),
        constant_bytes=lowered.get("constant_bytes"),
        constants=tuple(map(_constant, lowered.get("constants", ()))),
        executable_bytes=_executable_bytes(compiled, sizes) if compiled else None,
        cache_settings={k: v for k, v in (compiled or {}).items() if k.startswith("cache_")},
        results_before=(compiled or {}).get("results"),
        packages=tuple(lowered.get("packages", ())),
        stack=tuple(place for one in call.get("stack", ()) if (place := place_of(one))),
        stages=tuple(_stage(event, start) for _, event in group.stages),
        before_first_result=first is None or group.stages[0][1]["begin_ns"] <= first.ns,
    )


def _constant(told: Sequence[Any]) -> Constant:
    name, origin, dtype, shape, size, place = told[:6]
    return Constant(name, origin, dtype, tuple(shape), size, place_of(place))


def _stage(event: Mapping[str, Any], start_ns: int) -> Span:
    begin, end = ((event[key] - start_ns) / 1e9 for key in ("begin_ns", "end_ns"))
    return Span(event["stage"], begin, end, bare_name(event["name"]))


def _executable_bytes(
    compiled: Mapping[str, Any], sizes: Mapping[tuple[int, int], int]
) -> int | None:
    told: int | None = compiled.get("executable_bytes")
    return told or sizes.get((compiled["thread"] or 0, compiled["begin_ns"]))


def _signature(call: Mapping[str, Any], compiled: Mapping[str, Any]) -> Signature:
    arrays = call.get("arrays") or ()
    return Signature(
        arguments=tuple(Argument(p, d, tuple(s), bool(w), h) for p, d, s, w, h in arrays),
        leaves=int(call.get("leaves") or len(arrays)),
        tree=str(call.get("tree") or ""),
        static=dict(call.get("static") or {}),
        context={
            **(call.get("context") or {}),
            "options of jit": call.get("options"),
            "options of the compiler": compiled.get("compiler_options"),
            "arguments by position": call.get("positional"),
            "further leaves": call.get("rest"),
        },
        function_object=int(call.get("object") or 0),
        identity={path: _identity(*told) for path, told in (call.get("identity") or {}).items()},
    )


def _identity(kind: str, number: int | None, made_of: int | None, belongs_to: Any) -> Identity:
    return Identity(ByIdentity(kind), number, made_of, tuple(belongs_to))
