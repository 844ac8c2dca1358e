"""`freeze`: compile a function for example calls, try it in a fresh process, write one file."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import pickletools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from firstlight.warmstart.frozen import artifact as content
from firstlight.warmstart.frozen import trees
from firstlight.warmstart.frozen.artifact import Artifact, Batch, Leaf, Program
from firstlight.warmstart.frozen.errors import CannotFreezeError
from firstlight.warmstart.frozen.places import Place, this_place
from firstlight.warmstart.frozen.proving import Call, prove
from firstlight.warmstart.frozen.rows import batched_leaves, batched_results, with_rows
from firstlight.warmstart.frozen.sealing import sealed_function
from firstlight.whole_files import write_bytes


class Example:
    """A call to freeze a function for: `Example(x, y, mode="fast")`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args = args
        self.kwargs = kwargs


def freeze(
    f: Callable[..., object],
    *examples: object,
    path: str | os.PathLike[str],
    static: Sequence[str] = (),
    buckets: Sequence[int] = (),
    batched: Sequence[int | str] = (0,),
    key: str | os.PathLike[str] | None = None,
    compiler_options: Mapping[str, object] | None = None,
) -> Path:
    """Write executables of `f` for calls like the examples to one file, which `load` reads.

    Before the file is written, every executable is loaded and run in a fresh process, and its
    results are compared with those of `f`. The file is signed with your own key, if you have one
    without a passphrase (`firstlight keys generate`), or with the one in FIRSTLIGHT_SIGNING_KEY.

    Args:
        f: The function, also a transformed one (`jax.grad(f)`), with any trees of arrays.
        examples: The arguments of a call; or several calls, each a tuple of positional arguments
            or an `Example`. Only shapes and types matter; `jax.ShapeDtypeStruct` stands for an
            array of ones.
        path: The file to write.
        static: Names of keyword arguments that are part of the program: strings, numbers, None.
        buckets: Numbers of rows to compile for. A call with fewer rows is padded to the next
            bucket, and the extra rows of its results are dropped. `f` must treat every row on its
            own; this is checked.
        batched: With `buckets`, the arguments whose first axis is the rows, by position or name.
        key: The file of another private key to sign with.
        compiler_options: As for `jax.jit`.

    Raises:
        CannotFreezeError: Something in `f` cannot be frozen; the message says what to do.
    """
    compiled = []
    with _persistent_cache_off():
        for call in _calls(examples):
            for rows in sorted({*buckets}) or (0,):
                found = _compiled(f, call, tuple(static), rows, tuple(batched), compiler_options)
                compiled.append(found)
    programs = tuple(program for program, _, _ in compiled)
    devices = max(count for _, _, count in compiled)
    frozen = Artifact(
        function=_name(f),
        place=_place(devices),
        needs_lapack=any(b"lapack" in program.executable for program in programs),
        without_jax=devices == 1 and _can_run_without_jax(programs),
        programs=programs,
        arguments=_argument_names(f),
    )
    proofs = [proof for _, several, _ in compiled for proof in several]
    frozen = prove(frozen, proofs)
    where = Path(path)
    body = content.to_bytes(frozen)
    write_bytes(where, sealed_function(body, key=None if key is None else Path(key)))
    where.chmod(where.stat().st_mode & ~0o022)  # `load` refuses a file that others can write to
    return where


def _calls(examples: tuple[Any, ...]) -> list[Example]:
    if not examples:
        raise CannotFreezeError("no example: give the arguments of a call, freeze(f, x, y, …).")
    # A named tuple is an argument, such as the state of an optimiser.
    are_calls = [isinstance(e, Example) or type(e) is tuple for e in examples]
    if all(are_calls):
        return [e if isinstance(e, Example) else Example(*e) for e in examples]
    if any(isinstance(e, Example) for e in examples):
        raise CannotFreezeError(
            "calls and arguments are mixed: give every call as Example(…), or one call's arguments."
        )
    return [Example(*examples)]


def _compiled(
    f: Callable[..., object],
    call: Example,
    static: tuple[str, ...],
    rows: int,
    batched: Any,
    compiler_options: Mapping[str, object] | None,
) -> tuple[Program, list[Call], int]:
    """The executable for a call, calls that it must answer like `f`, and its number of devices."""
    import jax

    fixed = {name: value for name, value in call.kwargs.items() if name in static}
    _require_plain(fixed)
    kwargs = {name: value for name, value in call.kwargs.items() if name not in static}
    args, kwargs = _values((call.args, kwargs))
    inputs = batched_leaves(args, kwargs, batched) if rows else ()
    args, kwargs = with_rows(args, kwargs, inputs, rows)

    # A new function, because JAX may have loaded what it compiled for `f` from its cache; such an
    # executable can be written, but then fails to run.
    @functools.wraps(f)
    def fresh(*args: object, **kwargs: object) -> object:
        return f(*args, **kwargs, **fixed)

    jitted = jax.jit(fresh, compiler_options=compiler_options and dict(compiler_options))
    lowered = jitted.lower(*args, **kwargs)
    compiled = lowered.compile()
    program = _program(compiled, lowered, args, kwargs, tuple(sorted(fixed.items())))
    calls = [Call(args, {**kwargs, **fixed}, compiled(*args, **kwargs))]
    if rows:
        outputs = batched_results(fresh, args, kwargs, inputs, rows)
        program = replace(program, batch=Batch(rows, inputs, outputs))
        if rows > 1:
            fewer = with_rows(args, kwargs, inputs, rows - 1)
            calls.append(Call(fewer[0], {**fewer[1], **fixed}, jitted(*fewer[0], **fewer[1])))
    return program, calls, len(compiled.runtime_executable().local_devices())


def _program(compiled: Any, lowered: Any, args: object, kwargs: object, static: Any) -> Program:
    import jax
    from jax.experimental.serialize_executable import serialize

    internal = compiled._executable._unloaded_executable
    if internal.host_callbacks or internal.ordered_effects or internal.unordered_effects:
        raise CannotFreezeError(
            f"{internal.name} calls back into Python (debug.print, pure_callback, io_callback): "
            "there would be nothing to call in another process. Remove the callback from the "
            "function."
        )
    try:
        pickled, in_tree, out_tree = serialize(compiled)
    except (ValueError, NotImplementedError) as error:
        raise CannotFreezeError(f"{internal.name}: JAX cannot write it: {error}") from None
    # Taken from the pickle, because JAX 0.8 serialises to different bytes every time.
    parts = [part for _, part, _ in pickletools.genops(pickled) if isinstance(part, bytes)]
    if not parts:
        raise CannotFreezeError(f"{internal.name}: this JAX writes executables in an unknown form.")
    executable = max(parts, key=len)
    before, _, after = pickled.partition(executable)
    in_leaves, in_shape = trees.flatten((args, kwargs))
    out_info = jax.tree_util.tree_unflatten(out_tree, jax.tree_util.tree_leaves(lowered.out_info))
    out_leaves, out_shape = trees.flatten(out_info)
    plain = all(
        jax.tree_util.tree_structure(trees.unflatten(shape, iter([0] * len(leaves)))) == tree
        for shape, leaves, tree in (
            (in_shape, in_leaves, in_tree),
            (out_shape, out_leaves, out_tree),
        )
    )
    if not plain:
        in_leaves, out_leaves = map(jax.tree_util.tree_leaves, ((args, kwargs), out_info))
        in_shape = out_shape = None
    return Program(
        static=static,
        in_shape=in_shape,
        in_leaves=tuple(_leaf(jax.typeof(leaf)) for leaf in in_leaves),
        kept=tuple(sorted(internal.kept_var_idx)),
        out_shape=out_shape,
        out_leaves=tuple(_leaf(leaf) for leaf in out_leaves),
        batch=None,
        executable=executable,
        pickled=(before, after),
        pickled_trees=b"" if plain else _pickled(in_tree, out_tree),
    )


def _leaf(aval: Any) -> Leaf:
    import jax

    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        raise CannotFreezeError(
            f"an array of type {aval.dtype}: pass jax.random.key_data(key) into the frozen "
            "function, and wrap it inside with jax.random.wrap_key_data."
        )
    return Leaf(tuple(aval.shape), str(aval.dtype))


def _pickled(in_tree: object, out_tree: object) -> bytes:
    try:
        return pickle.dumps((in_tree, out_tree))
    except Exception as error:
        raise CannotFreezeError(
            f"arguments or results contain a class that cannot be pickled ({error}). Define it at "
            "the top level of a module, or pass and return tuples, lists and dicts."
        ) from None


def _values(tree: object) -> Any:
    """The tree with arrays of ones for `ShapeDtypeStruct`s."""
    import jax
    import numpy as np

    def value(leaf: Any) -> Any:
        return np.ones(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf

    return jax.tree_util.tree_map(value, tree)


def _require_plain(fixed: dict[str, object]) -> None:
    def plain(value: object) -> bool:
        if isinstance(value, tuple):
            return all(map(plain, value))
        return value is None or type(value) in (str, int, float, bool)

    for name, value in fixed.items():
        if not plain(value):
            raise CannotFreezeError(
                f"the static argument {name} is a {type(value).__name__}: only strings, numbers, "
                "None and tuples of them can be compared in another process."
            )


def _place(device_count: int) -> Place:
    import jax

    device = jax.devices()[0]
    return replace(
        this_place(),
        jax=jax.__version__,
        platform=device.platform,
        device="" if device.platform == "cpu" else device.device_kind,
        device_count=device_count,
        x64=bool(jax.config.jax_enable_x64),
    )


def _can_run_without_jax(programs: tuple[Program, ...]) -> bool:
    import jax

    plain = not any(program.pickled_trees for program in programs)
    return plain and jax.default_backend() == "cpu"


def _name(f: Callable[..., object]) -> str:
    return getattr(f, "__qualname__", None) or type(f).__name__


def _argument_names(f: Callable[..., object]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # some builtin functions have none
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(parameter.name for parameter in parameters if parameter.kind in positional)


@contextmanager
def _persistent_cache_off() -> Iterator[None]:
    """Turn JAX's cache off: executables loaded from it can be written, but then fail to run."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
