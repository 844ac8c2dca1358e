"""JSON Patch (RFC 6902) and JSON Pointer (RFC 6901) on plain Python values.

`apply` never changes its argument: an operation copies the containers on its path and shares the
rest, so the cost of patching a large workspace is that of the patch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from firstlight.histfactory.workspace_file import ContentError, Json, JsonObject, described, listed

#: RFC 6902, section 4: the members that an operation needs besides `op` and `path`.
_MEMBERS = {
    "add": ("value",),
    "remove": (),
    "replace": ("value",),
    "move": ("from",),
    "copy": ("from",),
    "test": ("value",),
}

#: RFC 6901, section 4: an array index has no sign and no leading zero.
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)


def apply(document: Json, operations: object) -> Json:
    """`document` after the operations, in order.

    Fails with a `ContentError` that names the first operation (from 0) that cannot be applied.
    """
    if not isinstance(operations, list):
        raise ContentError(f"a patch must be an array of operations, not {described(operations)}.")
    for index, operation in enumerate(operations):
        try:
            document = _apply_one(document, operation)
        except ContentError as fault:
            raise fault.inside(f"operation {index}") from None
        except RecursionError:
            raise ContentError("is nested too deeply.", f"operation {index}") from None
    return document


def _apply_one(document: Json, operation: object) -> Json:
    if not isinstance(operation, dict):
        raise ContentError(f"must be an object, not {described(operation)}.")
    op = operation.get("op")
    if not isinstance(op, str) or op not in _MEMBERS:
        raise ContentError(f"op is {described(op)}. Use one of {listed(_MEMBERS)}.")
    for member in ("path", *_MEMBERS[op]):
        if member not in operation:
            raise ContentError(f"{op} has no {member!r}. Add it.")
    path = operation["path"]
    try:
        return _perform(document, op, pointer(path), operation)
    except ContentError as fault:
        raise fault.inside(f"{op} {path!r}") from None


def _perform(document: Json, op: str, path: list[str], operation: JsonObject) -> Json:
    if op == "test":
        if not same_json(resolve(document, path), operation["value"]):
            raise ContentError("the value there is not the one that the patch expects.")
        return document
    if op == "remove":
        return _edit(document, path, _remove)
    if op in ("add", "replace"):
        value = operation["value"]
    else:
        origin = pointer(operation["from"])
        value = resolve(document, origin)
        if op == "move":
            if path[: len(origin)] == origin and path != origin:
                raise ContentError("a value cannot be moved into itself.")
            if path == origin:
                return document
            document = _edit(document, origin, _remove)
    if not path:
        return value
    if op == "replace":
        resolve(document, path)
        return _edit(document, path, lambda container, key: _put(container, key, value))
    return _edit(document, path, lambda container, key: _add(container, key, value))


def pointer(text: object) -> list[str]:
    """The reference tokens of a JSON pointer."""
    if not isinstance(text, str):
        raise ContentError(f"a JSON pointer must be a string, not {described(text)}.")
    if not text:
        return []
    if not text.startswith("/"):
        raise ContentError(f"the JSON pointer {text!r} must be empty or begin with '/'.")
    if re.search("~(?![01])", text):
        raise ContentError(f"the JSON pointer {text!r} has a '~' that is neither '~0' nor '~1'.")
    # The order matters: `~01` is the key `~1`.
    return [token.replace("~1", "/").replace("~0", "~") for token in text[1:].split("/")]


def resolve(document: Json, path: list[str]) -> Json:
    """The value at a path of reference tokens."""
    for token in path:
        document = document[_key(document, token)]
    return document


def same_json(one: Json, other: Json) -> bool:
    """Equality of RFC 6902, section 4.6: numbers by value, and `true` is not a number."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _key(container: Json, token: str, *, end: int = 0) -> Json:
    """The key of an object, or the index of an array, which must be below its length plus `end`."""
    if isinstance(container, dict):
        if token not in container and not end:
            raise ContentError(
                f"there is no key {token!r}; the keys are {listed(container) or 'none'}."
            )
        return token
    if not isinstance(container, list):
        raise ContentError(f"{token!r} cannot be looked up in {described(container)}.")
    if end and token == "-":
        return len(container)
    if not _INDEX.fullmatch(token):
        raise ContentError(f"{token!r} is not an array index.")
    if int(token) >= len(container) + end:
        raise ContentError(
            f"the index {token} is out of range: the array has {len(container)} entries."
        )
    return int(token)


def _edit(document: Json, path: list[str], change: Callable[[Json, str], None]) -> Json:
    """A copy of `document` along `path`, with the innermost container changed."""
    if not path:
        raise ContentError("the whole document cannot be removed.")
    root = parent = _shallow_copy(document, path[0])
    for token, following in pairwise(path):
        key = _key(parent, token)
        parent[key] = _shallow_copy(parent[key], following)
        parent = parent[key]
    change(parent, path[-1])
    return root


def _shallow_copy(container: Json, token: str) -> Json:
    if not isinstance(container, dict | list):
        raise ContentError(f"{token!r} cannot be looked up in {described(container)}.")
    return dict(container) if isinstance(container, dict) else list(container)


def _remove(container: Json, token: str) -> None:
    del container[_key(container, token)]


def _put(container: Json, token: str, value: Json) -> None:
    container[_key(container, token)] = value


def _add(container: Json, token: str, value: Json) -> None:
    key = _key(container, token, end=1)
    if isinstance(container, list):
        container.insert(key, value)
    else:
        container[key] = value
