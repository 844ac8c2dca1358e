"""Reads JSON files, and defines the errors and checks that all readers of a workspace share.

    FirstlightError
    └── WorkspaceError      an unusable workspace, patch or measurement

Inside the package a reader raises `ContentError`, which describes the fault; each level that it
passes adds its place, and the outermost turns it into a `WorkspaceError` that begins with the file.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from firstlight.errors import FirstlightError

Json: TypeAlias = Any  # any JSON value
JsonObject: TypeAlias = dict[str, Any]

#: The start of a literal, the middle of a number, the middle of an escape (`\\u00`).
_CUT = re.compile(r"-?[A-Za-z]{0,8}|\.|[eE][-+]?|\\?u?[0-9a-fA-F]{0,4}")


class WorkspaceError(FirstlightError):
    """An unusable workspace, patch or measurement."""


class ContentError(Exception):
    """A fault in a workspace; `inside` prepends a place, from the innermost outwards."""

    def __init__(self, message: str, *places: str) -> None:
        super().__init__(message)
        self.message = message
        self.places = places

    def inside(self, place: str) -> ContentError:
        """The same fault, one level further out."""
        return ContentError(self.message, place, *self.places)

    def error(self, source: str) -> WorkspaceError:
        """The error for the user, which begins with the name of the file."""
        place = ", ".join(self.places)
        return WorkspaceError(": ".join(part for part in (source, place, self.message) if part))


@contextmanager
def inside(place: str) -> Iterator[None]:
    """Add a place to faults found in this block."""
    try:
        yield
    except ContentError as fault:
        raise fault.inside(place) from None


def listed(names: Iterable[object], limit: int = 12) -> str:
    """The first `limit` names for a message, quoted."""
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - limit} more" if len(quoted) > limit else ""
    return ", ".join(quoted[:limit]) + more


def described(value: object) -> str:
    """A JSON value for a message: its kind, and the value itself if short."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) > 1e300:  # Python refuses to print the longest ones
        return "a number too large for a double"
    if isinstance(value, int | float):
        return f"the number {value!r}"
    return f"a value of type {type(value).__name__}"


def require_object(value: object, keys: Collection[str], required: Iterable[str]) -> JsonObject:
    """`value` as a dict that has the required keys and none outside `keys`, else an error."""
    if not isinstance(value, dict):
        raise ContentError(f"must be an object, not {described(value)}.")
    for key in required:
        if key not in value:
            raise ContentError(f"has no {key!r}. Add it.")
    if not value.keys() <= set(keys):
        unknown = [key for key in value if key not in keys]
        raise ContentError(
            f"has the unknown key {listed(unknown)}. Known: {', '.join(sorted(keys))}."
        )
    return value


def require_list(value: object, what: str, *, min_length: int = 0) -> list[Json]:
    """`value` as a list of at least `min_length` entries, else a `ContentError`."""
    if isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, list):
        raise ContentError(f"{what} must be an array, not {described(value)}.")
    if len(value) < min_length:
        raise ContentError(f"{what} is empty; at least {min_length} entry is needed.")
    return value


def require_name(plain: JsonObject) -> str:
    """The `name` of an object as a string, else a `ContentError`."""
    name = plain.get("name")
    if not isinstance(name, str):
        raise ContentError(f"name must be a string, not {described(name)}.")
    return name


def read_json(path: str | os.PathLike[str]) -> Json:
    """The value in a JSON file.

    Fails with a `WorkspaceError` that names the file, and line and column of a syntax error.
    """
    source = os.fspath(path)
    try:
        with open(path, "rb") as file:
            # The codec "utf-8-sig" would have to be imported.
            text = file.read().removeprefix(codecs.BOM_UTF8).decode()
    except FileNotFoundError:
        raise WorkspaceError(f"{source}: no such file. Check the path.") from None
    except IsADirectoryError:
        raise WorkspaceError(f"{source}: is a directory. Give the JSON file in it.") from None
    except OSError as error:
        raise WorkspaceError(f"{source}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise WorkspaceError(
            f"{source}: is not UTF-8 text (byte {error.start}). Give a JSON file; if it is an "
            "archive, unpack it."
        ) from None
    except ValueError as error:  # a path with a null character
        raise WorkspaceError(f"{source!r}: is not a path: {error}.") from None
    return _decode(text, source)


def _decode(text: str, source: str) -> Json:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkspaceError(f"{source}: {_not_json(text, error)}") from None
    except RecursionError:
        raise WorkspaceError(f"{source}: is nested too deeply to be a workspace.") from None
    except ValueError as error:  # an integer with more digits than Python converts
        raise WorkspaceError(f"{source}: has a number that cannot be read: {error}.") from None


def _not_json(text: str, error: json.JSONDecodeError) -> str:
    content = text.rstrip()
    if not content:
        return "is empty. Give a JSON file."
    place = f"line {error.lineno}, column {error.colno}: is not JSON: {error.msg}."
    # `Unterminated string` points at the start of the string, most others at the end of the text. A
    # literal, number or escape that was cut off is reported at its own start.
    cut = error.pos >= len(content) or _CUT.fullmatch(content, error.pos) is not None
    if error.msg.startswith("Unterminated string") or (cut and error.msg != "Extra data"):
        return f"{place} The file ends too early and looks truncated; fetch or write it again."
    return f"{place} Correct it there."
