"""Frozen functions as models: their executables come from a file, and nothing is compiled.

If jaxlib alone can run the file, JAX, which is most of a server's start-up time, is not imported.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from firstlight.serve.compiled_models import (
    Arrays,
    Bucket,
    Loaded,
    LoadError,
    example_rows,
    precision_scope,
    require_independent_rows,
    shortest_seconds,
)
from firstlight.serve.declaration import DeclarationError, FrozenOptions, Input, Model
from firstlight.serve.program_text import Traits, traits_of
from firstlight.serve.signature import Signature, Tensor
from firstlight.warmstart import sealed
from firstlight.warmstart.frozen import artifact as content
from firstlight.warmstart.frozen import trees
from firstlight.warmstart.frozen.artifact import Artifact, Leaf, Program
from firstlight.warmstart.frozen.executables import Executable, WithJax, WithoutJax
from firstlight.warmstart.frozen.places import differences, differences_for_jax, this_place
from firstlight.warmstart.frozen.sealing import opened


@dataclass(frozen=True)
class Opened:
    """A frozen function with the leaves of its arguments: their names, and values of parameters."""

    artifact: Artifact
    programs: tuple[Program, ...]  # of one call, sorted by rows
    names: tuple[str, ...]
    fixed: Mapping[int, np.ndarray[Any, Any]]

    @property
    def inputs(self) -> list[int]:
        """The leaves that requests give."""
        return [i for i in range(len(self.names)) if i not in self.fixed]


@dataclass(frozen=True)
class FrozenModel(Model):
    """A model whose executables are in a file; made by `frozen`."""

    opened: Opened = field(default=None, repr=False)  # type: ignore[assignment]
    digest: str = ""  # of the file


def is_frozen(path: Path) -> bool:
    """Whether the file begins like a frozen function; its content is not checked."""
    try:
        with path.open("rb") as file:
            return file.read(len(sealed.MAGIC)) == sealed.MAGIC
    except OSError:
        return False


def runs_without_jax(path: Path) -> bool:
    """Whether jaxlib alone can run it."""
    return content.from_bytes(opened(path)).without_jax


def frozen(
    path: str | Path,
    *,
    name: str | None = None,
    parameters: Mapping[str | int, object] | None = None,
    static: Mapping[str, object] | None = None,
    **options: Unpack[FrozenOptions],
) -> FrozenModel:
    """A model from a file of `firstlight.warmstart.freeze`.

    With buckets, the rows of a request are those of the arguments in `batched`. Without buckets, a
    row is the arguments of one call.

    Args:
        path: The file.
        name: By default the file's name without its suffix.
        parameters: Values of arguments that are not part of requests, by name or position.
        static: Selects the program by its static arguments, if the file has several.
        options: `version` (by default a digest of the file), `deadline_seconds`, `max_queue_rows`,
            `canary_share` and `about`, as in `serve.model`.

    Raises:
        FrozenError: The file cannot be read or trusted, or was made for another place.
        DeclarationError: The function does not fit requests.
    """
    where = Path(path)
    body = opened(where)
    artifact = content.from_bytes(body)
    _require_place(where, artifact)
    try:
        programs = _of_one_call(artifact, static)
        given = _opened(artifact, programs, dict(parameters or {}))
        inputs = {t.name: Input(t.dtype.name, t.shape) for t in _inputs(given)}
        for tensor in _outputs(given):
            Input(tensor.dtype.name)  # a type that the protocol has
    except DeclarationError as error:
        raise DeclarationError(f"{where}: {artifact.function}: {error}") from None
    digest = hashlib.sha256(body).hexdigest()
    options.setdefault("version", digest[:12])
    options.setdefault("about", f"{artifact.function}, frozen.")
    buckets = tuple(program.batch.rows if program.batch else 1 for program in programs)
    return FrozenModel(
        _function(given),
        inputs,
        name or where.stem,
        buckets=buckets,
        opened=given,
        digest=digest,
        **options,
    )


def _require_place(path: Path, artifact: Artifact) -> None:
    here = this_place()
    found = differences(artifact.place, here)
    if not found and not artifact.without_jax:
        with precision_scope(artifact.place.x64):
            found = differences_for_jax(artifact.place, here)
    if found:
        raise LoadError(
            f"{path}: {artifact.function} was frozen for another place: "
            f"{'; '.join(map(str, found))}. Freeze it on a machine like this one, with the same "
            "versions."
        )


def _of_one_call(artifact: Artifact, static: Mapping[str, object] | None) -> tuple[Program, ...]:
    """The programs of a call, one per bucket."""
    programs = artifact.programs
    if static is not None:
        programs = tuple(p for p in programs if dict(p.static) == dict(static))
    calls = {_call(program): program for program in programs}
    if len(calls) != 1:
        known = "; ".join(
            ", ".join([*map(str, p.in_leaves), *(f"{n}={v!r}" for n, v in p.static)])
            for p in {_call(p): p for p in artifact.programs}.values()
        )
        raise DeclarationError(
            f"a model is one call, and {len(calls)} of these match: {known}. Freeze one call per "
            "file, or choose with serve.frozen(path, static={...})."
        )
    return tuple(sorted(programs, key=lambda p: p.batch.rows if p.batch else 0))


def _call(program: Program) -> Any:
    batch = program.batch
    with_rows = batch.inputs if batch else ()
    leaves = tuple(
        (leaf.shape[1:] if i in with_rows else leaf.shape, leaf.dtype)
        for i, leaf in enumerate(program.in_leaves)
    )
    return program.static, program.in_shape, with_rows, batch is None, leaves


def _opened(
    artifact: Artifact, programs: tuple[Program, ...], parameters: dict[str | int, object]
) -> Opened:
    program = programs[0]
    names: list[str] = []
    fixed: dict[int, np.ndarray[Any, Any]] = {}
    for position, (name, shape, leaves) in enumerate(_arguments(artifact, program)):
        start = len(names)
        names += leaves
        key = next((key for key in (name, position) if key in parameters), None)
        if key is not None:
            values = _values(name, shape, parameters.pop(key), program.in_leaves[start:])
            fixed |= dict(enumerate(values, start))
        elif program.batch and not {*range(start, len(names))} <= {*program.batch.inputs}:
            raise DeclarationError(
                f"its argument {name!r} has no rows, so requests cannot contain it. Freeze a "
                f"function with it bound (functools.partial), or declare the model in Python: "
                f"serve.frozen(path, parameters={{{name!r}: ...}})."
            )
    if parameters:
        raise DeclarationError(f"it has no argument {next(iter(parameters))!r}.")
    return Opened(artifact, programs, tuple(names), fixed)


def _arguments(artifact: Artifact, program: Program) -> list[tuple[str, object, list[str]]]:
    """Every argument's name, tree, and names of leaves."""
    if program.in_shape is None:  # only JAX knows the tree
        return [(name, trees.LEAF, [name]) for name in _numbered("input", len(program.in_leaves))]
    _, (_, *positional), (_, *named) = program.in_shape
    known = artifact.arguments[: len(positional)]
    called = [*known, *_numbered("input", len(positional))[len(known) :]]
    pairs = [*zip(called, positional, strict=True), *named]
    return [(name, shape, trees.leaf_names(shape, name)) for name, shape in pairs]


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}.{i}" for i in range(count)]


def _values(
    name: str, shape: object, value: object, expected: Sequence[Leaf]
) -> list[np.ndarray[Any, Any]]:
    """The leaves of a parameter, checked against the frozen shapes."""
    leaves, found = trees.flatten(value)
    arrays = [
        np.asarray(leaf, _dtype(wanted)) for leaf, wanted in zip(leaves, expected, strict=False)
    ]
    shapes = [wanted.shape for wanted in expected[: len(leaves)]]
    if found != shape or [array.shape for array in arrays] != shapes:
        raise DeclarationError(
            f"the parameter {name!r} differs in structure or shape from what was frozen."
        )
    return arrays


def _inputs(given: Opened) -> tuple[Tensor, ...]:
    program = given.programs[0]
    return tuple(_tensor(given.names[i], program.in_leaves[i], program) for i in given.inputs)


def _outputs(given: Opened) -> tuple[Tensor, ...]:
    program = given.programs[0]
    count = len(program.out_leaves)
    names = trees.leaf_names(program.out_shape, "") if program.out_shape is not None else []
    if not names or any(name[:1].isdecimal() or not name for name in names):
        names = [f"output.{name}" if name else "output" for name in names]
        names = names or _numbered("output", count)
    if program.batch and len(program.batch.outputs) != count:
        missing = next(i for i in range(count) if i not in program.batch.outputs)
        raise DeclarationError(
            f"its result {names[missing]!r} has no rows, so it cannot be split among requests."
        )
    return tuple(
        _tensor(name, leaf, program) for name, leaf in zip(names, program.out_leaves, strict=True)
    )


def _tensor(name: str, leaf: Leaf, program: Program) -> Tensor:
    return Tensor(name, _dtype(leaf), leaf.shape[1:] if program.batch else leaf.shape)


def _dtype(leaf: Leaf) -> np.dtype[Any]:
    from firstlight.warmstart.frozen.jaxlib_runtime import dtype

    found: np.dtype[Any] = dtype(leaf.dtype)
    return found


def _function(given: Opened) -> Callable[..., object]:
    def call(**_: Any) -> Any:
        raise LoadError(f"{given.artifact.function} is frozen: a server runs its executables.")

    return call


def load_frozen(model: FrozenModel, max_bytes: int | None = None) -> Loaded:
    """Load all executables of a frozen function, and try them.

    Raises:
        LoadError: They need more memory than `max_bytes`.
    """
    given = model.opened
    signature = Signature(_inputs(given), _outputs(given), {}, model.function)
    needed = _bytes_needed(given)
    if max_bytes is not None and needed > max_bytes:
        raise LoadError(
            f"model {model.name!r}: its arrays need {needed / 2**20:.0f} MiB, but only "
            f"{max_bytes / 2**20:.0f} MiB may be used. Raise --memory-limit."
        )
    kind = WithoutJax if given.artifact.without_jax else WithJax
    wide = given.artifact.place.x64 and kind is WithJax
    placed: dict[int, object] = {}
    with precision_scope(wide):
        made = [_bucket(kind, given, signature, p, placed) for p in given.programs]
        buckets = tuple(bucket for bucket, _ in made)
        loaded = Loaded(model, signature, (), {(): buckets}, needed, wide, model.digest)
        try:
            require_independent_rows(loaded, made[0][1])
        except LoadError as error:
            raise LoadError(f"model {model.name!r}: {error}") from None
    return loaded


def _bucket(
    kind: type[WithJax] | type[WithoutJax],
    given: Opened,
    signature: Signature,
    program: Program,
    placed: dict[int, object],
) -> tuple[Bucket, Traits]:
    """placed: Parameters on the device, shared by all buckets."""
    begin = time.perf_counter()
    executable = kind(given.artifact, program)
    for i, array in given.fixed.items():
        placed.setdefault(i, executable.on_device(array))
    call = _calling(executable, given.inputs, placed, program)
    rows = program.batch.rows if program.batch else 1
    run = partial(call, *example_rows(signature, rows, ()))
    run()  # the first call is not representative
    load_seconds = time.perf_counter() - begin
    traits, seconds = traits_of(executable.text), shortest_seconds(run)
    return Bucket(rows, (), call, seconds, load_seconds, True, traits.may_not_end), traits


def _calling(
    executable: Executable, inputs: list[int], placed: Mapping[int, Any], program: Program
) -> Callable[..., Arrays]:
    """A function from a request's arrays, in the order of the signature, to those of its answer."""
    template: list[Any] = [placed.get(i) for i in range(len(program.in_leaves))]
    one_row = program.batch is None

    def call(*arrays: Any) -> Arrays:
        leaves = list(template)
        for i, array in zip(inputs, arrays, strict=True):
            leaves[i] = array[0] if one_row else array
        results = executable.run(leaves)
        return [np.asarray(result)[None] if one_row else np.asarray(result) for result in results]

    return call


def _bytes_needed(given: Opened) -> int:
    """Size of the arguments and results of the largest bucket."""
    largest = given.programs[-1]
    leaves = (*largest.in_leaves, *largest.out_leaves)
    sizes = (int(np.prod(leaf.shape)) * _dtype(leaf).itemsize for leaf in leaves)
    return sum(sizes)
