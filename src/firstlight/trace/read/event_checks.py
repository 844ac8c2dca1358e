"""Whether an event of a log is one that can be read: a log may be damaged, or by other hands.

Only what readers rely on is looked at. Events and keys that nobody knows are let through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstlight.trace.read.model import STAGES, ByIdentity

_Check = Callable[[Any], bool]
#: Longer texts say no more, and would fill a report.
MOST_TEXT = 2000
_MOST_DEPTH = 8


def checked(event: dict[str, Any]) -> dict[str, Any] | None:
    """The event, without what it may have and has not; None: it cannot be read."""
    needed, may_have = _KINDS.get(event["event"], ({}, {}))
    if not all(key in event and check(event[key]) for key, check in needed.items()):
        return None
    found = {k: v for k, v in event.items() if v is not None or k not in may_have}
    fine = all(check(found[key]) for key, check in may_have.items() if key in found)
    return found if fine else None


def cut(value: Any, depth: int = 0) -> Any:
    """The same with all texts short. ValueError: it is nested deeper than any event is."""
    if depth > _MOST_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"
    if isinstance(value, dict):
        return {cut(k): cut(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [cut(v, depth + 1) for v in value]
    return value


# --- what values may be ---------------------------------------------------------------------------


def _integer(value: Any) -> bool:
    # JSON has no largest number, clocks and sums have.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def _count(value: Any) -> bool:
    return _integer(value) and value >= 0


def _number(value: Any) -> bool:
    return (_integer(value) or isinstance(value, float)) and 0 <= value < float("inf")


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _plain(value: Any) -> bool:
    # An integer may be a hash of Python's, which are of 64 bits.
    return (
        value is None
        or isinstance(value, (str, float))
        or (isinstance(value, int) and abs(value) < 1 << 64)
    )


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _tuple_of(*checks: _Check) -> _Check:
    """A list that begins with these; there may be more."""
    return lambda value: (
        isinstance(value, list)
        and len(value) >= len(checks)
        and all(check(v) for check, v in zip(checks, value, strict=False))
    )


def _mapping_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _having(**checks: _Check) -> _Check:
    """A mapping in which these are right, as far as they are there."""
    return lambda value: (
        isinstance(value, dict)
        and all(value.get(key) is None or check(value[key]) for key, check in checks.items())
    )


def _place(value: Any) -> bool:
    """[file, line], or with the function; an empty one says nothing."""
    if not isinstance(value, list):
        return False
    function = value[2] if len(value) > 2 else None
    told = _tuple_of(_text, _integer)(value) and _or_none(_text)(function)
    return not value or value[0] is None or told


def _site_of_waits(value: Any) -> bool:
    needed = {"n": _count, "ns": _count, "span": _tuple_of(_integer, _integer)}
    places = {"site": _or_none(_place), "user_site": _or_none(_place)}
    return isinstance(value, dict) and all(
        key in value and check(value[key]) for key, check in (needed | places).items()
    )


def _array(value: Any) -> bool:
    """[path, type, shape, weak, sharding]"""
    checks = (_text, _text, _list_of(_plain), _plain, _or_none(_text))
    return _tuple_of(*checks)(value) and len(value) == len(checks)


def _constant(value: Any) -> bool:
    """[name, origin, dtype, shape, bytes, place]"""
    named, place = _or_none(_text), _or_none(_place)
    return _tuple_of(named, named, _text, _list_of(_plain), _count, place)(value)


def _function(value: Any) -> bool:
    return _having(name=_text, module=_text, kind=_text, place=_place, made_of=_count)(value)


def _identity(value: Any) -> bool:
    """[kind, number, number of its code, numbers of the objects that it belongs to]"""
    checks = (_kind, _or_none(_integer), _or_none(_integer), _list_of(_integer))
    return _tuple_of(*checks)(value) and len(value) == len(checks)


def _kind(value: Any) -> bool:
    return value in [kind.value for kind in ByIdentity]


_STATIC = _mapping_of(_plain)
_BREAK = _having(kind=_plain, type=_plain, static=_STATIC, place=_place, lines=_list_of(_place))
_Checks = dict[str, _Check]
#: {kind: (what must be there, what may be there and is then so)}
_KINDS: dict[str, tuple[_Checks, _Checks]] = {
    "process": (
        {"pid": _integer, "recording_ns": _integer},
        {
            "started_ns": _integer,
            "clock": _tuple_of(_integer, _integer),
            "command": _list_of(_text),
            "rank": _text,
            "parent": _integer,
            "thread": _integer,
            "first_result_pattern": _text,
        },
    ),
    "jax": ({"version": _plain}, {}),
    "torch": ({"version": _plain}, {}),
    "imports": (
        {"modules": _list_of(_tuple_of(_text, _integer, _count, _count))},
        {"sites": _mapping_of(_or_none(_place)), "thread": _integer},
    ),
    "backend": (
        {"platform": _plain, "begin_ns": _integer, "end_ns": _integer},
        {"thread": _integer},
    ),
    "begin": (
        {"name": _text, "ns": _integer, "call": _or_none(_integer)},
        {"thread": _integer, "thread_name": _text},
    ),
    "stage": (
        {
            "stage": lambda value: value in STAGES,
            "name": _text,
            "begin_ns": _integer,
            "end_ns": _integer,
            "own_ns": _integer,
            "thread": _or_none(_integer),
            "call": _or_none(_integer),
        },
        {
            "equations": _count,
            "lines": _list_of(_tuple_of(_text, _integer, _count)),
            "packages": _list_of(_text),
            "constant_bytes": _count,
            "constants": _list_of(_constant),
            "executable_bytes": _count,
            "cache": _mapping_of(_plain),
            "cache_in_key": _plain,
            "cache_least_seconds": _number,
            "cache_entries_of_name": _count,
            "process_index": _integer,
            "results": _count,
        },
    ),
    "size": ({"begin_ns": _integer, "thread": _integer, "executable_bytes": _count}, {}),
    "call": (
        {"call": _integer, "function": _function},
        {
            "object": _integer,
            "belongs_to": _list_of(_integer),
            "site": _place,
            "user_site": _place,
            "instruction": _count,
            "entry_site": _place,
            "stack": _list_of(_place),
            "arrays": _list_of(_array),
            "leaves": _count,
            "tree": _text,
            "static": _mapping_of(_text),
            "identity": _mapping_of(_identity),
            "context": _mapping_of(_plain),
        },
    ),
    "waits": (
        {"sites": _list_of(_site_of_waits), "short": _count, "short_ns": _count},
        {"long": _list_of(_tuple_of(_integer, _integer, _count))},
    ),
    "first_result": ({"ns": _integer}, {"site": _place, "by": _text}),
    "read": ({"ns": _integer}, {"site": _place}),
    "output": ({"ns": _integer}, {"site": _place, "stream": _text, "reads": _count}),
    "marked": ({"ns": _integer}, {"site": _place, "how": _text}),
    "problem": ({}, {"problems": _list_of(_plain), "missing": _text}),
    "end": (
        {"ns": _integer},
        {"own_ns": _count, "lost": _count, "problems": _list_of(_plain)},
    ),
    "exited": ({"ns": _integer}, {"code": _integer, "signal": _integer}),
    "torch_region": (
        {"begin_ns": _integer, "end_ns": _integer},
        {
            "thread": _integer,
            "place": _place,
            "site": _place,
            "user_site": _place,
            "seconds": _number,
            "imports_seconds": _number,
            "backend_seconds": _number,
            "restart_seconds": _number,
            "cache_misses": _count,
            "recompile": _having(kind=_text, static=_STATIC),
            "failure": _BREAK,
            "breaks": _list_of(_BREAK),
        },
    ),
}
