"""Why a function was compiled again: the parts in which the keys of two compiles differ."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from firstlight.warmstart.inventory import Listed


class Part(Enum):
    """A part of a key, or of the name of a kind of machine."""

    SHAPES = "shapes"
    CONSTANTS = "constants"
    CODE = "code"
    JAX = "jax"
    JAXLIB = "jaxlib"
    PYTHON = "python"
    SYSTEM = "system"
    PROCESSOR = "processor"
    BACKEND = "backend"
    FLAGS = "flags"
    OPTIONS = "options"
    DEVICES = "devices"
    COMPRESSION = "compression"
    OTHER = "other"


#: JAX's names of the parts of a key, each with the field of an entry that describes it.
_OF_JAX = {
    "jax_lib version": (Part.JAXLIB, "jaxlib"),
    "backend version": (Part.BACKEND, "backend"),
    "XLA flags": (Part.FLAGS, "xla_flags"),
    "compile_options": (Part.OPTIONS, "options"),
    "accelerator_config": (Part.DEVICES, "devices"),
    "compression": (Part.COMPRESSION, ""),
}


@dataclass(frozen=True)
class Difference:
    """first, second: descriptions; empty if it is only known that they differ."""

    part: Part
    first: str = ""
    second: str = ""


def compiles_of(function: str, listed: Iterable[Listed]) -> list[Listed]:
    """The entries of a function, last compiled first; `f`, `jit(f)` and `jit_f` are the same."""
    wanted = _bare(function)
    found = [one for one in listed if _bare(one.function) == wanted]
    return sorted(found, key=lambda one: -one.compiled)


def differences(first: Listed, second: Listed) -> list[Difference]:
    """The parts in which two compiles differ; empty if their keys are the same."""
    found = _of_kinds(first.kind, second.kind)
    parts, others = _parts(first), _parts(second)
    for name in sorted(parts.keys() | others.keys()):
        if parts.get(name) == others.get(name):
            continue
        if name == "computation":
            found.append(_of_programs(first.about, second.about))
        else:
            part, words = _OF_JAX.get(name, (Part.OTHER, ""))
            found.append(_different(part, first.about.get(words), second.about.get(words), name))
    if not found and first.key != second.key:
        found.append(Difference(Part.OTHER))
    unique = {difference.part: difference for difference in reversed(found)}
    if Part.FLAGS in unique and not unique.get(Part.OPTIONS, Difference(Part.OPTIONS)).first:
        unique.pop(Part.OPTIONS, None)  # the options contain the flags too
    return list(reversed(unique.values()))


def _bare(name: str) -> str:
    name = re.sub(r"^(jit|pmap)\((.*)\)$", r"\2", name)
    return re.sub(r"^(jit|pmap)_", "", name).replace("<", "_").replace(">", "_").strip("_")


def _parts(one: Listed) -> dict[str, object]:
    parts = one.about.get("parts")
    return parts if isinstance(parts, dict) else {}


def _of_kinds(first: str, second: str) -> list[Difference]:
    """The differences between two names from `folder.kind_name`."""
    pattern = r"jax(.+)-jaxlib(.+)-py([\d.]+)-([^-]+-.+)-([0-9a-f]+)"
    one, other = re.fullmatch(pattern, first), re.fullmatch(pattern, second)
    if one is None or other is None:
        return [] if first == second else [Difference(Part.OTHER, first, second)]
    parts = (Part.JAX, Part.JAXLIB, Part.PYTHON, Part.SYSTEM, Part.PROCESSOR)
    pairs = zip(parts, one.groups(), other.groups(), strict=True)
    return [Difference(part, a, b) for part, a, b in pairs if a != b]


def _of_programs(first: dict[str, object], second: dict[str, object]) -> Difference:
    if first.get("shapes") != second.get("shapes"):
        return _different(Part.SHAPES, first.get("shapes"), second.get("shapes"))
    same = first.get("without_constants") == second.get("without_constants")
    return Difference(Part.CONSTANTS if same else Part.CODE)


def _different(part: Part, first: object, second: object, name: str = "") -> Difference:
    if part is Part.OTHER:
        return Difference(part, name, name)
    if isinstance(first, dict) and isinstance(second, dict):
        names = [n for n in first | second if first.get(n) != second.get(n)]
        first, second = ({n: one.get(n) for n in names} for one in (first, second))
    same = first == second
    return Difference(part, "" if same else _words(first), "" if same else _words(second))


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return str(value) if value not in (None, "") else "none"
