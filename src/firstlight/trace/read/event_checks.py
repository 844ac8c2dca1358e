"""Checks the events of a log, which may be damaged, or written by somebody else.

Only what readers rely on is checked; unknown events and keys pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from firstlight.trace.read.model import STAGES, ByIdentity

Event = dict[str, Any]
_Check = Callable[[object], bool]
MAX_TEXT = 2000  # characters; longer texts would fill a report
_MAX_DEPTH = 8


def checked(event: Event) -> Event | None:
    """The event without optional keys that are null; None if it is not valid."""
    kind = event["event"]
    if kind not in _NEEDED:
        return event
    needed = _NEEDED[kind].split()
    checks = {key: _CHECKS.get(f"{kind}.{key}") or _CHECKS.get(key) for key in event}
    found = {k: v for k, v in event.items() if v is not None or k in needed or checks[k] is None}
    fine = all((check := checks[k]) is None or check(v) for k, v in found.items())
    return found if fine and found.keys() >= {*needed} else None


def cut(value: object, depth: int = 0) -> object:
    """The value with all texts shortened. ValueError: it is nested deeper than any event."""
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}…"
    if isinstance(value, dict):
        return {cut(k): cut(v, depth + 1) for k, v in value.items()}
    return [cut(v, depth + 1) for v in value] if isinstance(value, list) else value


# --- checks of values -----------------------------------------------------------------------------


def _integer(value: object) -> TypeGuard[int]:
    # JSON has no largest integer; clocks and sums do.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62


def _count(value: object) -> bool:
    return _integer(value) and value >= 0


def _number(value: object) -> bool:
    if _integer(value) or isinstance(value, float):
        return 0 <= value < float("inf")
    return False


def _text(value: object) -> bool:
    return isinstance(value, str)


def _plain(value: object) -> bool:
    # An integer may be a hash of Python, which has 64 bits.
    small = isinstance(value, int) and abs(value) < 1 << 64
    return value is None or isinstance(value, (str, float)) or small


def _one_of(values: Sequence[str]) -> _Check:
    return lambda value: value in values


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _list_starting_with(*checks: _Check) -> _Check:
    return lambda value: (
        isinstance(value, list)
        and len(value) >= len(checks)
        and all(check(v) for check, v in zip(checks, value, strict=False))
    )


def _mapping_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _mapping(needed: str = "", **checks: _Check) -> _Check:
    """A mapping with the needed keys, in which the checked ones are valid if present."""
    must = {*needed.split()}
    return lambda value: (
        isinstance(value, dict)
        and value.keys() >= must
        and all(
            check(value[key])
            for key, check in checks.items()
            if key in must or value.get(key) is not None
        )
    )


def _place(value: object) -> bool:
    """[file, line] or [file, line, function]; [] and None mean unknown."""
    if not value or not isinstance(value, list):
        return value in ([], None)
    function = value[2] if len(value) > 2 else None
    right = _list_starting_with(_text, _integer)(value) and _or_none(_text)(function)
    return value[0] is None or right


def _exactly(*checks: _Check) -> _Check:
    starts = _list_starting_with(*checks)
    return lambda value: isinstance(value, list) and len(value) == len(checks) and starts(value)


_IDENTITY_KIND = _one_of([kind.value for kind in ByIdentity])
_TEXT_OR_NONE, _SHAPE, _STATIC = _or_none(_text), _list_of(_plain), _mapping_of(_plain)
_ARRAY = _exactly(_text, _text, _SHAPE, _plain, _TEXT_OR_NONE)
_CONSTANT = _list_starting_with(_TEXT_OR_NONE, _TEXT_OR_NONE, _text, _SHAPE, _count, _place)
_RESHARDED = _list_starting_with(_text, _text, _SHAPE, _count, _text, _text, _place)
_IDENTITY = _exactly(_IDENTITY_KIND, _or_none(_integer), _or_none(_integer), _list_of(_integer))
_BREAK = _mapping(kind=_plain, type=_plain, static=_STATIC, place=_place, lines=_list_of(_place))
_MOMENTS = _list_starting_with(_integer, _integer)
_WAIT = _mapping(
    "n ns span site user_site", n=_count, ns=_count, span=_MOMENTS, site=_place, user_site=_place
)

#: Required keys by kind of event.
_NEEDED = {
    "process": "pid recording_ns",
    "jax": "version",
    "torch": "version",
    "imports": "modules",
    "backend": "platform begin_ns end_ns",
    "device_use": "platform begin_ns end_ns reserves_memory",
    "begin": "name ns call",
    "stage": "stage name begin_ns end_ns thread call",
    "call": "call function",
    "waits": "sites short short_ns",
    **dict.fromkeys(("first_result", "read", "output", "marked", "end", "exited"), "ns"),
    "problem": "",
    "torch_region": "begin_ns end_ns",
}
_BY_CHECK: dict[_Check, str] = {
    _integer: "pid recording_ns started_ns parent begin_ns end_ns ns process_index object "
    "code signal call.call",
    _or_none(_integer): "thread call",
    _count: "own_ns equations constant_bytes executable_bytes cache_entries_of_name results "
    "instruction leaves short short_ns reads lost cache_misses",
    _number: "cache_least_seconds seconds imports_seconds backend_seconds restart_seconds",
    _text: "rank first_result_pattern name thread_name tree by stream how missing",
    _plain: "version platform cache_in_key reserves_memory",
    _one_of(STAGES): "stage",
    _place: "site user_site entry_site place",
    _list_of(_place): "stack",
    _list_of(_text): "command packages",
    _list_of(_plain): "problems",
    _list_of(_integer): "belongs_to",
    _mapping_of(_text): "static",
    _STATIC: "cache context",
    _MOMENTS: "clock",
    _list_of(_list_starting_with(_text, _integer, _count, _count)): "modules",
    _mapping_of(_place): "imports.sites",
    _list_of(_WAIT): "waits.sites",
    _list_of(_list_starting_with(_integer, _integer, _count)): "long",
    _list_of(_list_starting_with(_text, _integer, _count)): "lines",
    _list_of(_CONSTANT): "constants",
    _list_of(_RESHARDED): "resharded",
    _list_of(_ARRAY): "arrays",
    _mapping_of(_IDENTITY): "identity",
    _mapping(name=_text, module=_text, kind=_text, place=_place, made_of=_count): "function",
    _mapping("kind", kind=_text, static=_STATIC): "recompile",
    _BREAK: "failure",
    _list_of(_BREAK): "breaks",
}
_CHECKS = {key: check for check, keys in _BY_CHECK.items() for key in keys.split()}
