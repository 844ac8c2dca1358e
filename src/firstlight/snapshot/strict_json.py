"""JSON from strangers, and canonical JSON.

Input is bounded, and refused where two readers could understand it differently: duplicate keys,
NaN, numbers beyond a double, lone surrogates, excessive depth.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from firstlight.records import RecordError, from_json
from firstlight.snapshot.errors import UnusableSnapshotError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

T = TypeVar("T")
#: A JSON object.
Plain = dict[str, Any]
MAX_LEVELS = 40  # of nesting; what Firstlight writes has at most a dozen
#: An integer of so many digits still fits into a double.
_MAX_DIGITS = 300
#: The shipped JSON Schemas, by the name of the file that they describe.
SCHEMAS = {
    "index.json": "snapshot-index-1.schema.json",
    "signature.json": "snapshot-signature-1.schema.json",
    "manifest.json": "snapshot-manifest-1.schema.json",
    "validation_report.json": "snapshot-validation-1.schema.json",
    "distributions.json": "snapshot-distributions-1.schema.json",
    "plan.json": "snapshot-plan-1.schema.json",
    "run.json": "run-1.schema.json",
}


def canonical(value: object) -> bytes:
    """`value` in canonical form: sorted keys, indent 1, UTF-8, a newline at the end."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def compact(value: object) -> bytes:
    """`value` in canonical form on one line, without a newline."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


def parse(data: bytes, name: str, max_bytes: int) -> Any:
    """The value in `data`; errors name the file `name`."""
    if len(data) > max_bytes:
        raise UnusableSnapshotError(f"{name}: more than the limit of {max_bytes} bytes.")
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


def parse_object(data: bytes, name: str, max_bytes: int) -> Plain:
    """Like `parse`, for a file that must contain an object."""
    value = parse(data, name, max_bytes)
    if not isinstance(value, dict):
        raise UnusableSnapshotError(f"{name}: expected an object, found {type(value).__name__}.")
    return value


def decoded(cls: type[T], plain: object, where: str) -> T:
    """A record from plain JSON, refused unless every field has its type."""
    try:
        return from_json(cls, plain, where)
    except RecordError as error:
        raise UnusableSnapshotError(str(error)) from None


def first_error(plain: object, schema: str) -> str | None:
    """The worst violation of a schema, with its path, or None. Needs jsonschema."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator(schema).iter_errors(plain))
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


@functools.cache
def _validator(schema: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    text = files("firstlight").joinpath("schemas", schema).read_text("utf-8")
    return Draft202012Validator(json.loads(text))


def _no_duplicates(pairs: list[tuple[str, object]]) -> Plain:
    found = dict(pairs)
    if len(found) != len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:60]!r} occurs twice in one object")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:30]} is too large for a number")
    return value


def _whole(text: str) -> int:
    if len(text) > _MAX_DIGITS:  # it would overflow in arithmetic with floats
        raise ValueError(f"{text[:30]}… is too large for a number")
    return int(text)


def _require_plain(value: object) -> None:
    """Refuse excessive depth and lone surrogates, without recursion."""
    layer, levels = [value], 0
    while layer:
        levels += 1
        if levels > MAX_LEVELS:
            raise ValueError(f"nested deeper than {MAX_LEVELS} levels")
        below: list[object] = []
        for item in layer:
            if isinstance(item, dict):
                below += [*item, *item.values()]
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str) and not item.isascii():
                item.encode("utf-8")  # a lone surrogate raises a ValueError
        layer = below
