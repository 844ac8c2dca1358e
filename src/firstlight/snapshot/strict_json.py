"""JSON from strangers, and JSON that has one spelling only.

What is read is bounded before it is parsed, and is refused where two readers could understand it
differently: duplicate keys, NaN, numbers beyond a double, half characters, needless depth.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

from firstlight.records import RecordError, from_json
from firstlight.snapshot.errors import UnusableSnapshotError

T = TypeVar("T")

#: Nothing that Firstlight writes nests deeper than a dozen levels.
MAX_LEVELS = 40
#: Digits of a whole number that is certainly within a double. Nothing that is counted has so many.
_DIGITS = 300


def canonical(value: Any) -> bytes:
    """The one spelling of `value`: sorted keys, indent 1, UTF-8, a newline at the end."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def compact(value: Any) -> bytes:
    """The one spelling of `value` on a single line, without its newline."""
    separators = (",", ":")
    text = json.dumps(
        value, sort_keys=True, separators=separators, ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def parse(data: bytes, name: str, max_bytes: int) -> Any:
    """The value in `data`; `name` is said in what is raised when it is not plain JSON."""
    if len(data) > max_bytes:
        raise UnusableSnapshotError(
            f"{name}: {len(data)} bytes of JSON, more than the limit of {max_bytes}."
        )
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
        _require_plain(value)
    except RecursionError:
        raise UnusableSnapshotError(f"{name}: nested too deeply to be read.") from None
    except ValueError as error:  # also UnicodeDecodeError, and integers of thousands of digits
        raise UnusableSnapshotError(f"{name}: not plain JSON: {error}") from None
    return value


def parse_object(data: bytes, name: str, max_bytes: int) -> dict[str, Any]:
    """The same for a file that must contain an object."""
    value = parse(data, name, max_bytes)
    if not isinstance(value, dict):
        raise UnusableSnapshotError(f"{name}: expected an object, found {type(value).__name__}.")
    return value


def decoded(cls: type[T], plain: Any, where: str) -> T:
    """A record from plain JSON, refused unless every field has its type."""
    try:
        return from_json(cls, plain, where)
    except RecordError as error:
        raise UnusableSnapshotError(str(error)) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:60]!r} occurs twice in one object")
            seen.add(key)
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:30]} is beyond every number")
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:  # such a number would overflow wherever it meets a float
        raise ValueError(f"{text[:30]}… is beyond every number")
    return int(text)


def _require_plain(value: Any) -> None:
    """Bounded depth and whole characters, found without recursion."""
    layer, levels = [value], 0
    while layer:
        levels += 1
        if levels > MAX_LEVELS:
            raise ValueError(f"nested deeper than {MAX_LEVELS} levels")
        below: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str) and not item.isascii():
                item.encode("utf-8")  # half a character raises a ValueError
        layer = below
