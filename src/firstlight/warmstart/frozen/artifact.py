"""The content of a frozen function's file: a head in JSON, then executables and JAX's pickles.

This module runs and unpickles nothing: `sealing` first decides whether to trust the file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from firstlight.warmstart.frozen import trees
from firstlight.warmstart.frozen.errors import FrozenError
from firstlight.warmstart.frozen.places import Place

_LENGTH_BYTES = 8
Static = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Leaf:
    """An array among the arguments or results."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Batch:
    """How many rows the executable computes, and which argument and result leaves have rows."""

    rows: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """One executable with its arguments and results."""

    static: Static  # keyword arguments that are part of the program
    in_shape: trees.Shape  # of (args, kwargs); None if only JAX knows the tree
    in_leaves: tuple[Leaf, ...]
    kept: tuple[int, ...]  # the leaves that the executable takes: XLA drops unused ones
    out_shape: trees.Shape
    out_leaves: tuple[Leaf, ...]
    batch: Batch | None
    executable: bytes
    #: JAX's pickle of the executable: the parts before and after `executable`.
    pickled: tuple[bytes, bytes]
    #: Both trees pickled, if they contain classes that only JAX's registry knows.
    pickled_trees: bytes


@dataclass(frozen=True)
class Artifact:
    """A frozen function."""

    function: str
    place: Place
    needs_lapack: bool
    without_jax: bool  # whether a fresh process has run it without JAX
    programs: tuple[Program, ...]
    arguments: tuple[str, ...] = ()  # names of the positional arguments

    @property
    def has_plain_trees(self) -> bool:
        return not any(program.pickled_trees for program in self.programs)


def to_bytes(artifact: Artifact) -> bytes:
    blobs: list[bytes] = []
    programs = []
    for program in artifact.programs:
        fields = asdict(program)
        parts = [fields.pop("executable"), *fields.pop("pickled"), fields.pop("pickled_trees")]
        blobs += parts
        programs.append({**fields, "bytes": [len(part) for part in parts]})
    head = {
        **{k: v for k, v in vars(artifact).items() if k not in ("place", "programs")},
        "place": artifact.place.to_json(),
        "programs": programs,
    }
    text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(_LENGTH_BYTES, "big"), text, *blobs])


def from_bytes(data: bytes) -> Artifact:
    """Parse the content of a file that has been checked."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "big")
    try:
        head = json.loads(data[_LENGTH_BYTES:end])
        programs = []
        for plain in head.pop("programs"):
            parts = []
            for size in plain.pop("bytes"):
                parts.append(data[end : end + size])
                end += size
            programs.append(_program(plain, parts))
        place = Place.from_json(head.pop("place"))
        head["arguments"] = tuple(head.get("arguments", ()))
        return Artifact(**head, place=place, programs=tuple(programs))
    except (ValueError, KeyError, TypeError) as error:
        raise FrozenError(f"it was written by another version of Firstlight ({error!r})") from None


def _program(plain: dict[str, Any], parts: list[bytes]) -> Program:
    executable, before, after, pickled_trees = parts
    batch = plain["batch"] and {
        name: tuple(v) if isinstance(v, list) else v for name, v in plain["batch"].items()
    }
    return Program(
        static=trees.from_json(plain["static"]),
        in_shape=trees.from_json(plain["in_shape"]),
        in_leaves=_leaves(plain["in_leaves"]),
        kept=tuple(plain["kept"]),
        out_shape=trees.from_json(plain["out_shape"]),
        out_leaves=_leaves(plain["out_leaves"]),
        batch=Batch(**batch) if batch else None,
        executable=executable,
        pickled=(before, after),
        pickled_trees=pickled_trees,
    )


def _leaves(plain: list[dict[str, Any]]) -> tuple[Leaf, ...]:
    return tuple(Leaf(tuple(leaf["shape"]), leaf["dtype"]) for leaf in plain)
