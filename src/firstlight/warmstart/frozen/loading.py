"""`load`: load a frozen function, which is called like the original one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from firstlight.forks import has_lost_threads, require_threads
from firstlight.warmstart.frozen import artifact as content
from firstlight.warmstart.frozen import trees
from firstlight.warmstart.frozen.artifact import Artifact, Leaf, Program
from firstlight.warmstart.frozen.errors import DoesNotBelongError, UnknownCallError
from firstlight.warmstart.frozen.executables import Executable, WithJax, WithoutJax, jax_trees
from firstlight.warmstart.frozen.places import (
    Difference,
    differences,
    differences_for_jax,
    this_place,
)
from firstlight.warmstart.frozen.sealing import opened

_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_MAX_SHOWN = 12


class How(Enum):
    """What runs the calls of a loaded function."""

    WITHOUT_JAX = "jaxlib alone: NumPy arrays in and out"
    WITH_JAX = "JAX: its arrays come out"
    ORIGINAL = "the original function: nothing here is frozen"


def load(
    path: str | os.PathLike[str],
    original: Callable[..., object] | None = None,
    *,
    with_jax: bool | None = None,
) -> Frozen:
    """Load a frozen function, which is called like the original one.

    It never traces, lowers or compiles. If JAX has not been imported yet, it is not imported, and
    results are NumPy arrays; otherwise they are JAX arrays. `how` says which.

    Args:
        path: A file that `freeze` has written.
        original: Called if the file was made for another machine or other versions, or has no
            executable for the arguments. Without it, both are errors.
        with_jax: True: import JAX and return its arrays. False: never use JAX.

    Raises:
        NotTrustedError: Somebody else may have written the file; none of it was run.
        DoesNotBelongError: It was made for another machine or other versions.
    """
    where = Path(path)
    artifact = content.from_bytes(opened(where))
    here = this_place()
    found = differences(artifact.place, here)
    if with_jax is None:
        with_jax = "jax" in sys.modules or not artifact.without_jax
    if not found and not with_jax and not artifact.without_jax:
        raise DoesNotBelongError(
            f"{where}: {artifact.function} runs with JAX only: leave out with_jax=False."
        )
    if not found and with_jax:
        found = differences_for_jax(artifact.place, here)
    if not found:
        return Frozen(artifact, How.WITH_JAX if with_jax else How.WITHOUT_JAX, original)
    if original is None:
        raise DoesNotBelongError(
            f"{where}: {artifact.function} was frozen for another place: "
            f"{'; '.join(map(str, found))}. Freeze it here, or give the function itself to use "
            "instead: load(path, original=f)."
        )
    return Frozen(artifact, How.ORIGINAL, original, tuple(found))


class Frozen:
    """A loaded frozen function.

    how: what runs its calls. differences: why the original does, if it does.
    """

    def __init__(
        self,
        artifact: Artifact,
        how: How,
        original: Callable[..., object] | None,
        differing: tuple[Difference, ...] = (),
    ) -> None:
        self.how = how
        self.differences = differing
        self._artifact = artifact
        self._original = original
        self._static = {name for program in artifact.programs for name, _ in program.static}
        self._programs: dict[object, list[Program]] = {}  # by key, in the order of their rows
        for program in sorted(artifact.programs, key=lambda p: p.batch.rows if p.batch else 0):
            self._programs.setdefault(self._key_of(program), []).append(program)
        self._batched = {p.batch.inputs for p in artifact.programs if p.batch}
        # Executables are loaded at their first call: a program may use one bucket of many.
        self._loaded: dict[int, Executable] = {}
        self._found: dict[object, tuple[Executable, int]] = {}
        #: Called first: the original, or the only executable, whose arguments JAX checks.
        self._direct = original if how is How.ORIGINAL else None
        self._tracer: Any = ()  # no class
        if how is How.WITH_JAX:
            from jax.core import Tracer

            self._tracer = Tracer

    def __repr__(self) -> str:
        return f"<frozen {self._artifact.function}: {self.how.value}>"

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if has_lost_threads() and self.how is not How.ORIGINAL:
            require_threads()
        if self._direct is not None:
            try:
                return self._direct(*args, **kwargs)
            except TypeError:  # another signature, or a transformation
                if self.how is How.ORIGINAL:
                    raise
        static = tuple(sorted((n, kwargs.pop(n)) for n in self._static & {*kwargs}))
        leaves, shape = self._flatten((args, kwargs))
        key = (static, shape, *map(self._signature, leaves))
        is_traced = any(isinstance(leaf, self._tracer) for leaf in leaves)
        found = None if is_traced else self._found.get(key) or self._look_up(key)
        if found is not None:
            executable, rows = found
            if rows or not isinstance(executable, WithJax):
                return executable(leaves, rows)
            if len(self._artifact.programs) == 1 and not static:
                # JAX's own dispatch compares the signature, in a tenth of the time.
                self._direct = executable.compiled
            return executable.compiled(*args, **kwargs)
        if self._original is not None:
            return self._original(*args, **kwargs, **dict(static))
        if is_traced:
            raise UnknownCallError(_NOT_TRANSFORMED.format(self._artifact.function))
        raise UnknownCallError(_unknown_call(self._artifact, key))

    def _flatten(self, value: object) -> tuple[list[object], object]:
        if self._artifact.has_plain_trees:
            return trees.flatten(value)
        import jax

        leaves, tree = jax.tree_util.tree_flatten(value)
        return leaves, tree

    def _signature(self, leaf: object) -> tuple[object, str]:
        """Shape and type, as JAX would see them with the precision of the frozen program."""
        number = _NUMBERS.get(type(leaf))
        shape = () if number else getattr(leaf, "shape", None)
        kind = number or str(getattr(leaf, "dtype", type(leaf).__name__))
        return shape, kind if self._artifact.place.x64 else _NARROW.get(kind, kind)

    def _key_of(self, program: Program) -> object:
        shape = program.in_shape
        if program.pickled_trees and self.how is How.WITH_JAX:
            shape = jax_trees(program)[0]
        leaves = tuple((leaf.shape, leaf.dtype) for leaf in program.in_leaves)
        return (
            program.static,
            shape,
            *_any_rows(leaves, program.batch.inputs if program.batch else None),
        )

    def _look_up(self, key: Any) -> tuple[Executable, int] | None:
        """The executable for a call, with the smallest bucket that holds its rows."""
        static, shape, *leaves = key
        for inputs in (None, *self._batched):
            rows = {leaves[i][0][0] for i in inputs or () if i < len(leaves) and leaves[i][0]}
            if inputs and len(rows) != 1:
                continue
            needed = max(rows, default=0)
            for program in self._programs.get((static, shape, *_any_rows(leaves, inputs)), ()):
                if program.batch is None or 0 < needed <= program.batch.rows:
                    self._found[key] = self._executable(program), needed
                    return self._found[key]
        return None

    def _executable(self, program: Program) -> Executable:
        if id(program) not in self._loaded:
            kind = WithoutJax if self.how is How.WITHOUT_JAX else WithJax
            self._loaded[id(program)] = kind(self._artifact, program)
        return self._loaded[id(program)]


def _any_rows(leaves: Any, inputs: tuple[int, ...] | None) -> list[Any]:
    """Signatures of leaves, without the number of rows of those in `inputs`."""
    if not inputs:
        return list(leaves)
    return [
        ((-1, *shape[1:]), kind) if i in inputs and shape else (shape, kind)
        for i, (shape, kind) in enumerate(leaves)
    ]


_NOT_TRANSFORMED = (
    "{} was frozen, so it cannot be differentiated, mapped or compiled as part of another "
    "function. Freeze what you need, for example jax.grad(f), or give the function itself: "
    "load(path, original=f)."
)


def _unknown_call(artifact: Artifact, key: Any) -> str:
    """The message that names the call and the frozen ones."""
    static, shape, *leaves = key
    known = [_call(p.static, p.in_shape, map(str, p.in_leaves), p) for p in artifact.programs]
    more = [f"and {len(known) - _MAX_SHOWN} more"] if len(known) > _MAX_SHOWN else []
    seen = (str(Leaf(s, kind)) if isinstance(s, tuple) else kind for s, kind in leaves)
    lines = "\n  ".join([*known[:_MAX_SHOWN], *more])
    return (
        f"{artifact.function} was not frozen for {_call(static, shape, seen)}. It was frozen for"
        f"\n  {lines}\nFreeze it for this call too, or give the function itself: "
        "load(path, original=f)."
    )


def _call(static: Any, shape: object, leaves: Iterable[str], program: Program | None = None) -> str:
    """A call as it would be written, with types for values."""
    texts = list(leaves)
    if isinstance(shape, tuple):
        args, kwargs = trees.unflatten(trees.without_classes(shape), iter(map(_Text, texts)))
        parts = [repr(arg) for arg in args]
        parts += [f"{name}={value!r}" for name, value in kwargs.items()]
    else:  # a tree that only JAX knows
        parts = texts
    parts += [f"{name}={value!r}" for name, value in static]
    up_to = f", at most {program.batch.rows} rows" if program and program.batch else ""
    return f"({', '.join(parts)}){up_to}"


class _Text(str):
    """A string that is shown without quotation marks inside lists."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
