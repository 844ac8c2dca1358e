"""Logs without what is the user's own: paths, arguments, values, names of private modules.

Done to the log, before anything is made of it, so that no report can show more. What stays:
names of functions and parameters, keys that could be such names, shapes and types, line numbers,
public packages. Equal things stay equal: a file becomes a short hash of its path, with a random
salt that nobody keeps, so that no hash can be found by trying what it might stand for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from firstlight.trace.read.log_events import parsed
from firstlight.trace.read.recompiles import is_number
from firstlight.trace.record.log_format import WHOLE
from firstlight.whole_files import write_text

_PLACES = ("place", "site", "user_site", "entry_site")
_DROPPED = ("folder", "command")
#: Text of ours, of Python or of JAX.
_KEPT = (
    *("event", "schema", "python", "version", "platform", "stage", "kind", "status"),
    *("qualname", "cache_in_key", "transformation"),
)
_INSTALLED = re.compile(r"^.*[/\\](site-packages|dist-packages|python3\.\d+)[/\\](.*)$")
#: A text as Python writes it, perhaps cut off before its end; a number of many digits.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)""", re.DOTALL)
_LONG_NUMBER = re.compile(r"(?<![\w-])\d{4,}(?!\w)")
_WORD = re.compile(r"^[A-Za-z_]\w{0,39}$")
#: x['key'][3].field: names, keys that are names, indices.
_PATH = re.compile(
    r"^\w*(\['[\w-]+'\]|\[\d{1,3}\]|\[key-\w+\]|\[<flat index \d+>\]|\.\w+|\.<static \d+>)*$"
)
_HARMLESS = re.compile(r"^[\w .,:;=()\[\]{}<>*'+|-]*$")


#: One for all that is redacted by one command.
_SALT = os.urandom(16)


def redact_folder(folder: Path) -> None:
    """Rewrite all logs of a folder; lines that a kill has cut off are left out."""
    for path in list(folder.glob("*.jsonl")):
        text = redacted(path.read_text("utf-8", "replace"))
        target = folder / _name_of_log(path)
        write_text(target, text)
        if target != path:
            path.unlink()


def redact_copy(folder: Path, copy: Path) -> None:
    """Write all logs of a folder into another, without what is the user's own."""
    for path in folder.glob("*.jsonl"):
        write_text(copy / _name_of_log(path), redacted(path.read_text("utf-8", "replace")))


def _name_of_log(path: Path) -> str:
    """Logs of several machines lie in one folder: by the machine's name, which is the user's."""
    machine, dash, number = path.stem.rpartition("-")
    return f"{short_hash(machine)}-{number}.jsonl" if dash else path.name


def redacted(log: str) -> str:
    """The text of a log."""
    events = [event for line in log.splitlines() if (event := parsed(line)) is not None]
    own = _own_words(events)
    return "".join(_line(event, own) for event in events)


def _line(event: Mapping[str, Any], own: frozenset[str]) -> str:
    try:
        return json.dumps(_event(event, own), separators=(",", ":")) + "\n"
    except (TypeError, ValueError, AttributeError, RecursionError):
        return ""  # of a kind that nobody knows, and not built as ours are


def short_hash(text: str) -> str:
    """Eight digits that stand for a text."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=_SALT, digest_size=4).hexdigest()


def _event(event: Mapping[str, Any], own: frozenset[str]) -> dict[str, Any]:
    kept = {key: _value(key, value, own) for key, value in event.items() if key not in _DROPPED}
    if event.get("event") == "imports" and isinstance(event.get("sites"), Mapping):
        kept["sites"] = {module(str(n)): _place(place) for n, place in event["sites"].items()}
    return kept


def _value(key: str, value: Any, own: frozenset[str]) -> Any:
    if key == "made_of" and value is not None:  # a number made from paths, which could be tried
        return int(short_hash(str(value)), 16)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if key in _PLACES:
        return _place(value)
    if key == "constants":
        return [_constant(one, own) for one in value]
    if key in ("lines", "stack"):
        return [_place(line) for line in value]
    if key == "modules":
        return [[module(str(name)), *rest] for name, *rest in value]
    if key == "packages":
        return [module(str(name)) for name in value]
    if key == "by":
        return module(str(value)) if value else value
    if key == "first_result_pattern":  # of the program's own words
        return f"pattern-{short_hash(str(value))}"
    if key == "module":
        return module(str(value))
    if key == "arrays":
        return [_array(array, own) for array in value]
    if key == "tree":
        return _tree(str(value), own)
    if key == "rank":  # of a job; by other names than numbers it may tell the machine
        return value if str(value).isdecimal() else f"rank-{short_hash(str(value))}"
    if key == "static":
        return {_path(str(name), own): _static(text) for name, text in value.items()}
    if key == "identity":
        return {_path(str(n), own): [kind, *_numbers(rest)] for n, (kind, *rest) in value.items()}
    if key == "problems":
        return [_text(": ".join(str(p).split(": ")[:2]), own) for p in value]
    if isinstance(value, Mapping):
        return {str(k): _value(str(k), v, own) for k, v in value.items() if k not in _DROPPED}
    if isinstance(value, (list, tuple)):
        return [_value(key, v, own) for v in value]
    return (
        str(value)
        if key in _KEPT
        else _name(str(value), own)
        if key == "name"
        else _text(str(value), own)
    )


def _place(value: Any) -> Any:
    """[file, line, …]"""
    if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], str):
        return value
    return [file(value[0]), *value[1:]]


def file(path: str) -> str:
    """Of a public package the path within it; of everything else a hash."""
    if path.startswith("<"):
        return path
    installed = _INSTALLED.match(path)
    if installed:
        top = re.split(r"[/\\]", installed[2])[0].removesuffix(".py")
        if _is_public(top):
            return f"{installed[1]}/{installed[2]}"
    return f"file-{short_hash(path)}.py"


def module(name: str) -> str:
    """Modules of Python and of public packages keep their names."""
    top = name.partition(".")[0]
    if top in ("__main__", "firstlight") or _is_public(top):
        return name
    return f"module_{short_hash(top)}" + ("." + short_hash(name) if "." in name else "")


def _array(array: Any, own: frozenset[str]) -> list[Any]:
    """[path, type, shape, weak, sharding]"""
    path, *rest = array
    return [_path(str(path), own), *(_value("", v, own) for v in rest)]


def _constant(constant: Any, own: frozenset[str]) -> list[Any]:
    """[name, origin, dtype, shape, bytes, place]"""
    name, origin, dtype, shape, size, place, *_ = constant
    return [name and _path(str(name), own), origin, _text(dtype, own), shape, size, _place(place)]


def _path(path: str, own: frozenset[str]) -> str:
    told, whole, _ = _keys(path).partition(WHOLE)
    if not _PATH.match(told):
        told = f"path-{short_hash(told)}"
    return _text(told, own) + whole


def _numbers(identity: list[Any]) -> list[Any]:
    """Of an object, of its code, of what it belongs to: that of the code is made from paths."""
    number, made_of, belongs_to = identity
    return [number, None if made_of is None else int(short_hash(str(made_of)), 16), belongs_to]


def _tree(tree: str, own: frozenset[str]) -> str:
    """A structure: dicts, lists and tuples are shown; other classes may hold values of theirs."""
    told = _keys(tree)
    begin = re.split("CustomNode|…", told)[0]  # …: it was cut, and a hash of the whole follows
    if begin != told:
        return f"{_text(begin, own)}… tree-{short_hash(tree)}"
    return _text(told, own)


def _keys(text: str) -> str:
    """Keys that could be names stay; others, and numbers that are more than an index, do not."""

    def key(match: re.Match[str]) -> str:
        return match[0] if _WORD.match(match[0][1:-1]) else f"'key-{short_hash(match[0])}'"

    quoted = _QUOTED.sub(key, text)
    return _LONG_NUMBER.sub(lambda match: f"key-{short_hash(match[0])}", quoted)


def _static(text: Any) -> Any:
    """A switch says nothing of anybody; any other value is a hash, which tells whether a number."""
    if text in ("True", "False", "None"):
        return text
    kind = "number" if is_number(str(text)) else "value"
    return f"{kind}-{short_hash(str(text))}"


def _name(text: str, own: frozenset[str]) -> str:
    """The name of a function; it stays, unless it is a path."""
    return f"name-{short_hash(text)}" if "/" in text or "\\" in text else text


def _text(text: str, own: frozenset[str]) -> str:
    """Text of unknown origin: kept where it can hold no path."""
    words = set(re.findall(r"[\w.-]+", text))
    if _HARMLESS.match(text) and not words & own:
        return text
    return f"text-{short_hash(text)}"


def _own_words(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Parts of all paths that occur, as far as they are the user's."""
    paths: set[str] = {str(Path.home())}
    for event in events:
        paths.update(str(text) for key in _DROPPED for text in _several(event.get(key)))
        for key in _PLACES:
            paths.update(str(text) for text in _several(event.get(key))[:1])
    words = {part for path in paths for part in re.split(r"[/\\]", path) if len(part) > 2}
    return frozenset(words - {"home", "usr", "lib", "bin", "tmp", "python3", "python"})


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


@cache
def _is_public(top: str) -> bool:
    """Whether a module is of Python, or of a package that was installed from an index."""
    if top in sys.stdlib_module_names:
        return True
    distributions = _distributions().get(top)
    return bool(distributions) and not any(_is_local(d) for d in distributions or ())


@cache
def _distributions() -> Mapping[str, list[str]]:
    from importlib.metadata import packages_distributions

    return packages_distributions()


@cache
def _is_local(distribution: str) -> bool:
    """Installed from a folder or a repository of the user's."""
    from importlib.metadata import PackageNotFoundError, files
    from importlib.metadata import distribution as find

    try:
        origin = find(distribution).read_text("direct_url.json")
        return origin is not None or files(distribution) is None
    except PackageNotFoundError:
        return True
