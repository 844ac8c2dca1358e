"""Removes the user's data from logs: paths, arguments, values, names of private modules.

It changes the log itself, so no report made from it can show more. These remain: names of functions
and parameters, keys that could be such names, shapes and types, line numbers, public packages.
Equal things stay equal: a file becomes a short hash of its path, with a random salt that is never
stored, so that no hash can be found by guessing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from firstlight.trace.read.event_checks import Event
from firstlight.trace.read.log_events import parsed
from firstlight.trace.read.recompiles import is_number
from firstlight.trace.record.log_format import WHOLE
from firstlight.whole_files import write_text

_PLACES = ("place", "site", "user_site", "entry_site")
_DROPPED = ("folder", "command")
#: Keys whose text is Firstlight's, Python's or JAX's.
_KEPT = (
    *("event", "schema", "python", "version", "platform", "stage", "kind", "status"),
    *("qualname", "cache_in_key", "transformation"),
)
_INSTALLED = re.compile(r"^.*[/\\](site-packages|dist-packages|python3\.\d+)[/\\](.*)$")
#: A string literal, perhaps cut off; a number of many digits.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$)""", re.DOTALL)
_LONG_NUMBER = re.compile(r"(?<![\w-])\d{4,}(?!\w)")
_WORD = re.compile(r"^[A-Za-z_]\w{0,39}$")
#: x['key'][3].field: names, keys that are names, indices.
_PATH = re.compile(
    r"^\w*(\['[\w-]+'\]|\[\d{1,3}\]|\[key-\w+\]|\[<flat index \d+>\]|\.\w+|\.<static \d+>)*$"
)
_HARMLESS = re.compile(r"^[\w .,:;=()\[\]{}<>*'+|-]*$")
_SALT = os.urandom(16)  # one per process, so that a command's hashes agree


def redact_folder(folder: Path) -> None:
    """Rewrite all logs of a folder, without lines that a kill cut off."""
    logs = {*folder.glob("*.jsonl")}
    for path in logs - redact_copy(folder, folder):
        path.unlink()


def redact_copy(folder: Path, copy: Path) -> set[Path]:
    """Write all logs of a folder, redacted, into another; return the files written."""
    written = set()
    for path in list(folder.glob("*.jsonl")):
        # The file names contain the names of machines.
        machine, dash, number = path.stem.rpartition("-")
        target = copy / (f"{short_hash(machine)}-{number}.jsonl" if dash else path.name)
        write_text(target, redacted(path.read_text("utf-8", "replace")))
        written.add(target)
    return written


def redacted(log: str) -> str:
    """The text of a log, redacted."""
    events = [event for line in log.splitlines() if (event := parsed(line)) is not None]
    redaction = _Redaction(events)
    return "".join(map(redaction.line, events))


def short_hash(text: str) -> str:
    """Eight hexadecimal digits that stand for a text."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=_SALT, digest_size=4).hexdigest()


class _Redaction:
    """Redacts the events of one log, by rules per key."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._own = _own_words(events)
        self._rules: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys(_PLACES, _place),
            "lines": lambda lines: list(map(_place, lines)),
            "stack": lambda lines: list(map(_place, lines)),
            "modules": lambda rows: [[module(str(name)), *rest] for name, *rest in rows],
            "packages": lambda names: [module(str(name)) for name in names],
            "by": lambda name: module(str(name)) if name else name,
            "module": lambda name: module(str(name)),
            "sites": self._sites,
            "first_result_pattern": lambda text: f"pattern-{short_hash(str(text))}",
            # Unless it is a number, a rank may contain the name of the machine.
            "rank": lambda r: r if str(r).isdecimal() else f"rank-{short_hash(str(r))}",
            "constants": lambda several: list(map(self._constant, several)),
            "resharded": lambda several: list(map(self._resharded, several)),
            "arrays": lambda arrays: [
                [self._path(path), *(self._value("", v) for v in rest)] for path, *rest in arrays
            ],
            "tree": self._tree,
            "static": lambda named: {self._path(n): _static(text) for n, text in named.items()},
            "identity": lambda named: {
                self._path(n): [kind, number, _number(made_of), belongs_to]
                for n, (kind, number, made_of, belongs_to) in named.items()
            },
            "problems": lambda several: [
                self._text(": ".join(str(one).split(": ")[:2])) for one in several
            ],
        }

    def line(self, event: Event) -> str:
        try:
            return json.dumps(self._mapping(event), separators=(",", ":")) + "\n"
        except (TypeError, ValueError, AttributeError, RecursionError):
            return ""  # of an unknown kind, with a structure that the rules do not fit

    def _mapping(self, event: Mapping[str, object]) -> Event:
        return {str(k): self._value(str(k), v) for k, v in event.items() if k not in _DROPPED}

    def _value(self, key: str, value: object) -> object:
        if key == "made_of":
            return _number(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if key in self._rules:
            return self._rules[key](value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            return [self._value(key, v) for v in value]
        text = str(value)
        if key == "name":  # names of functions stay, unless they are paths
            return f"name-{short_hash(text)}" if "/" in text or "\\" in text else text
        return text if key in _KEPT else self._text(text)

    def _sites(self, value: Iterable[object]) -> object:
        """In `imports` a mapping by module; in `waits` a list."""
        if isinstance(value, Mapping):
            return {module(str(name)): _place(place) for name, place in value.items()}
        return [self._value("", one) for one in value]

    def _resharded(self, argument: Iterable[object]) -> list[object]:
        name, dtype, shape, size, given, used, place, *_ = argument
        specs = (self._text(str(spec)) for spec in (given, used))
        return [self._path(name), dtype, shape, size, *specs, _place(place)]

    def _constant(self, constant: Iterable[Any]) -> list[object]:
        name, origin, dtype, shape, size, place, *_ = constant
        return [name and self._path(name), origin, self._text(dtype), shape, size, _place(place)]

    def _path(self, path: object) -> str:
        text, whole, _ = _keys(str(path)).partition(WHOLE)
        if not _PATH.match(text):
            text = f"path-{short_hash(text)}"
        return self._text(text) + whole

    def _tree(self, tree: object) -> str:
        """A structure up to its first node of another class than dict, list or tuple: nodes of
        other classes may contain values."""
        text = _keys(str(tree))
        begin = re.split("CustomNode|…", text)[0]  # …: shortened, followed by a checksum
        if begin == text:
            return self._text(text)
        return f"{self._text(begin)}… tree-{short_hash(str(tree))}"

    def _text(self, text: str) -> str:
        """Text of unknown origin: kept if it cannot contain a path."""
        words = set(re.findall(r"[\w.-]+", text))
        kept = _HARMLESS.match(text) and not words & self._own
        return text if kept else f"text-{short_hash(text)}"


def _number(made_of: object) -> int | None:
    """Replace a checksum of code, which could be found by guessing."""
    return None if made_of is None else int(short_hash(str(made_of)), 16)


def _place(value: object) -> object:
    """Redact the file of [file, line, …]."""
    if not isinstance(value, (list, tuple)) or not value or not isinstance(value[0], str):
        return value
    return [file(value[0]), *value[1:]]


def file(path: str) -> str:
    """The path within a public package; a hash for every other file."""
    if path.startswith("<"):
        return path
    installed = _INSTALLED.match(path)
    if installed and _is_public(re.split(r"[/\\]", installed[2])[0].removesuffix(".py")):
        return f"{installed[1]}/{installed[2]}"
    return f"file-{short_hash(path)}.py"


def module(name: str) -> str:
    """The name of a module of Python or a public package; a hash for every other."""
    top = name.partition(".")[0]
    if top in ("__main__", "firstlight") or _is_public(top):
        return name
    return f"module_{short_hash(top)}" + ("." + short_hash(name) if "." in name else "")


def _keys(text: str) -> str:
    """Replace keys that cannot be names, and numbers too large for an index."""

    def key(match: re.Match[str]) -> str:
        return match[0] if _WORD.match(match[0][1:-1]) else f"'key-{short_hash(match[0])}'"

    quoted = _QUOTED.sub(key, text)
    return _LONG_NUMBER.sub(lambda match: f"key-{short_hash(match[0])}", quoted)


def _static(text: object) -> object:
    """True, False and None stay; other values become a hash, marked if it was a number."""
    if text in ("True", "False", "None"):
        return text
    kind = "number" if is_number(str(text)) else "value"
    return f"{kind}-{short_hash(str(text))}"


def _own_words(events: Iterable[Event]) -> frozenset[str]:
    """The parts of the user's paths in the log."""
    paths: set[str] = {str(Path.home())}
    for event in events:
        paths.update(str(text) for key in _DROPPED for text in _several(event.get(key)))
        paths.update(str(text) for key in _PLACES for text in _several(event.get(key))[:1])
    words = {part for path in paths for part in re.split(r"[/\\]", path) if len(part) > 2}
    return frozenset(words - {"home", "usr", "lib", "bin", "tmp", "python3", "python"})


def _several(value: object) -> list[object]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


@cache
def _is_public(top: str) -> bool:
    """Whether a module belongs to Python or to a package that was installed from an index."""
    if top in sys.stdlib_module_names:
        return True
    distributions = _distributions().get(top, [])
    return bool(distributions) and not any(map(_is_local, distributions))


@cache
def _distributions() -> Mapping[str, list[str]]:
    from importlib.metadata import packages_distributions

    return packages_distributions()


@cache
def _is_local(name: str) -> bool:
    """Whether a package was installed from a folder or a repository."""
    from importlib.metadata import PackageNotFoundError, distribution, files

    try:
        origin = distribution(name).read_text("direct_url.json")
        return origin is not None or files(name) is None
    except PackageNotFoundError:
        return True
