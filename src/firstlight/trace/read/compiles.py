"""Combines the calls and stages of a log: one `Compile` per program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from firstlight.telemetry.events import bare_name
from firstlight.trace.read import model
from firstlight.trace.read.event_checks import Event
from firstlight.trace.read.first_result import FirstResult
from firstlight.trace.read.log_events import ProcessLog, place_of
from firstlight.trace.read.model import CacheStatus, CacheUse, MissReason

#: Objects of one function that one line may call before it counts as creating them repeatedly.
_MAX_COPIES = 2


@dataclass(frozen=True)
class FunctionKey:
    """Equal for compiles of the same function: its name, place, and all of its code."""

    name: str
    place: model.SourceLine | None
    module: str | None
    library: bool
    kind: str | None
    made_of: int | None = None  # checksum of all code in it and around it
    copy: int = 0  # which of several objects with the same code that count as different functions


@dataclass
class _Group:
    """The stages of one program, in their order."""

    call: Event | None
    stages: list[tuple[int, Event]] = field(default_factory=list)  # with the index in the log


def compiles_of(
    log: ProcessLog, process: int, exclusive_ns: Mapping[int, int], first: FirstResult | None
) -> Iterator[tuple[FunctionKey, model.Compile]]:
    """Every program that was traced, lowered or compiled, by its begin.
    exclusive_ns: time of each stage event without what ran inside. first: the first result."""
    groups = sorted(_groups(log), key=lambda g: g.stages[0][1]["begin_ns"])
    keys = [_key(group) for group in groups]
    for key, copy, group in zip(keys, _copies(keys, groups), groups, strict=True):
        yield replace(key, copy=copy), _compile(group, log, process, exclusive_ns, first)


def _groups(log: ProcessLog) -> list[_Group]:
    """Groups the stages of each call, in order; a repeated stage begins a new group."""
    calls = {event["call"]: event for event in log.of("call")}
    open_groups: dict[object, _Group] = {}
    groups: list[_Group] = []
    for index, event in enumerate(log.events):
        if event["event"] != "stage":
            continue
        number = event["call"]
        which = number if number is not None else (event["thread"], bare_name(event["name"]))
        group = open_groups.get(which)
        order = model.STAGES.index(event["stage"])
        if group is None or model.STAGES.index(group.stages[-1][1]["stage"]) >= order:
            group = open_groups[which] = _Group(calls.get(number))
            groups.append(group)
        group.stages.append((index, event))
    return groups


def _copies(keys: Sequence[FunctionKey], groups: Sequence[_Group]) -> list[int]:
    """`FunctionKey.copy` of each program; 0 if all objects of the function count as one."""
    by_key: dict[FunctionKey, list[Event]] = defaultdict(list)
    for key, group in zip(keys, groups, strict=True):
        if group.call is not None and group.stages[-1][1]["stage"] == "compile" and not key.library:
            by_key[key].append(group.call)
    numbers: dict[tuple[FunctionKey, object], int] = {}
    for key, calls in by_key.items():
        if not _are_made_again(calls):
            objects = dict.fromkeys(call.get("object") for call in calls)
            numbers |= {(key, one): number for number, one in enumerate(objects)}
    objects_of_groups = ((group.call or {}).get("object") for group in groups)
    return [numbers.get(pair, 0) for pair in zip(keys, objects_of_groups, strict=True)]


def _are_made_again(calls: Sequence[Event]) -> bool:
    """Whether one call in the source creates a new function object each time that it runs.
    Two models may share a call, so it takes three objects, or two with the same owner."""
    at_call: dict[object, dict[object, tuple[int, ...]]] = defaultdict(dict)
    for call in calls:
        # Not the line alone: it may have two calls.
        sites = {tuple(call.get(name) or ()) for name in ("site", "user_site")} - {()}
        for site in sites:
            owners = tuple(call.get("belongs_to") or ())
            at_call[site, call.get("instruction")][call.get("object")] = owners
    return any(
        len(objects) > _MAX_COPIES or len({*objects.values()}) < len(objects)
        for objects in at_call.values()
    )


def _key(group: _Group) -> FunctionKey:
    name = bare_name(group.stages[0][1]["name"])
    if group.call is None:
        return FunctionKey(name, None, None, False, None)
    about = group.call["function"]
    return FunctionKey(
        str(about.get("name") or name),
        place_of(about.get("place")),
        # A spawned process has the main module under another name.
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
    first: FirstResult | None,
) -> model.Compile:
    begin_ns = group.stages[0][1]["begin_ns"]
    stages = {event["stage"]: event for _, event in group.stages}
    seconds: dict[str, float | None] = dict.fromkeys(model.STAGES)
    for index, event in group.stages:
        seconds[event["stage"]] = exclusive_ns.get(index, 0) / 1e9
    lowered, compiled = stages.get("lower", {}), stages.get("compile", {})
    call, lines = group.call or {}, lowered.get("lines", ())
    return model.Compile(
        name=_key(group).name,
        process=process,
        thread=int(group.stages[0][1]["thread"] or 0),
        begin_seconds=log.seconds_at(begin_ns),
        end_seconds=log.seconds_at(group.stages[-1][1]["end_ns"]),
        stage_seconds=seconds,
        signature=_signature(call, compiled) if call else None,
        site=place_of(call.get("site")),
        user_site=place_of(call.get("user_site")),
        entry_site=place_of(call.get("entry_site")),
        compiled=bool(compiled),
        cache=cache_use(compiled, log.head.get("rank")) if compiled else None,
        equations=lowered.get("equations"),
        equation_lines=tuple((model.SourceLine(one[0], one[1]), one[2]) for one in lines),
        equation_repeats=tuple(one[3] if len(one) > 3 else 1 for one in lines),
        constant_bytes=lowered.get("constant_bytes"),
        constants=tuple(
            model.Constant(name, origin, dtype, tuple(shape), size, place_of(place))
            for name, origin, dtype, shape, size, place, *_ in lowered.get("constants", ())
        ),
        resharded=tuple(
            model.Resharded(name, dtype, tuple(shape), size, given, used, place_of(place))
            for name, dtype, shape, size, given, used, place, *_ in lowered.get("resharded", ())
        ),
        executable_bytes=compiled.get("executable_bytes"),
        cache_settings={k: v for k, v in compiled.items() if k.startswith("cache_")},
        results_before=compiled.get("results"),
        packages=tuple(lowered.get("packages", ())),
        stack=tuple(place for one in call.get("stack", ()) if (place := place_of(one))),
        stages=tuple(_span(event, log) for _, event in group.stages),
        before_first_result=first is None or begin_ns <= first.ns,
    )


def _span(event: Event, log: ProcessLog) -> model.Span:
    begin, end = (log.seconds_at(event[key]) for key in ("begin_ns", "end_ns"))
    return model.Span(event["stage"], begin, end, bare_name(event["name"]))


def _signature(call: Event, compiled: Event) -> model.Signature:
    arrays = call.get("arrays") or ()
    identities = (call.get("identity") or {}).items()
    return model.Signature(
        arguments=tuple(model.Argument(p, d, tuple(s), bool(w), h) for p, d, s, w, h in arrays),
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
        identity={
            path: model.Identity(model.ByIdentity(kind), number, made_of, tuple(belongs_to))
            for path, (kind, number, made_of, belongs_to) in identities
        },
    )


# --- the persistent cache -------------------------------------------------------------------------


def cache_use(compiled: Event, rank: str | None) -> CacheUse:
    """Whether the cache had a program, and if not, why."""
    counts = compiled.get("cache")
    if not compiled.get("cache_folder"):
        status = CacheStatus.OFF if "cache_folder" in compiled else CacheStatus.UNKNOWN
    elif counts is None:  # a folder is set, but JAX did not ask it
        status = CacheStatus.UNKNOWN
    elif counts.get("hit"):
        status = CacheStatus.HIT
    elif counts.get("disabled") or not counts.get("requested"):
        status = CacheStatus.OFF
    elif counts.get("written"):
        known = compiled.get("cache_entries_of_name", 0) > 0
        reason = MissReason.OTHER_KEY if known else MissReason.NO_ENTRY
        return CacheUse(CacheStatus.MISS, reason, True)
    else:
        return CacheUse(CacheStatus.MISS, _why_not_written(compiled, rank), False)
    return CacheUse(status, None, False)


def _why_not_written(compiled: Event, rank: str | None) -> MissReason:
    """JAX checks in this order: process 0, callbacks, compile time."""
    index, least = compiled.get("process_index"), compiled.get("cache_least_seconds")
    if index not in (None, 0):
        return MissReason.RANK
    if compiled.get("callbacks") and not compiled.get("cache_keeps_callbacks"):
        return MissReason.CALLBACKS
    if least is not None and (compiled["end_ns"] - compiled["begin_ns"]) / 1e9 < least:
        return MissReason.BELOW_THRESHOLD
    return MissReason.RANK if index is None and rank not in (None, "0") else MissReason.NOT_WRITTEN
