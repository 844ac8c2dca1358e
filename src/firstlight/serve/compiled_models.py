"""From a declaration to executables, which are compiled, run and timed before the first request."""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firstlight.errors import FirstlightError
from firstlight.histfactory.lazy_jax import jax
from firstlight.serve import kept_programs
from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.declaration import Model
from firstlight.serve.signature import Signature, Sizes, Tensor, signature_of

#: A bucket is timed by so many runs, or by those that fit into so many seconds.
_MAX_RUNS, _MAX_SECONDS = 50, 0.02
_ALIGNMENT, _LARGE = 64, 2**17
Arrays = list[np.ndarray[Any, Any]]


class LoadError(FirstlightError):
    """A model that this process cannot serve."""


@dataclass(frozen=True)
class Bucket:
    """One executable with its measured cost and origin."""

    rows: int
    sizes: Sizes
    call: Callable[..., Any]
    seconds: float  # of one batch
    load_seconds: float
    from_cache: bool


@dataclass(frozen=True)
class Loaded:
    """A version of a model, compiled and tried; `lanes` has buckets by sizes of variable axes."""

    model: Model
    signature: Signature
    parameters: tuple[Any, ...]
    lanes: Mapping[Sizes, tuple[Bucket, ...]]
    memory_bytes: int
    wide: bool
    relative_error: float | None = None  # measured, of a `compute_dtype`

    @property
    def buckets(self) -> list[Bucket]:
        return [bucket for lane in self.lanes.values() for bucket in lane]

    def run(self, bucket: Bucket, inputs: Arrays) -> Arrays:
        """Outputs on the host. It never compiles: another shape raises a TypeError."""
        with precision_scope(self.wide):
            results = bucket.call(*self.parameters, *inputs)
        return [np.asarray(result) for result in results]


def precision_scope(wide: bool) -> Any:
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def load(model: Model, watch: CompileWatch, max_bytes: int | None = None) -> Loaded:
    """Compile a model for all its sizes, or load it from the compilation cache, and try it.

    Args:
        watch: These compiles are not counted as compiles during requests.
        max_bytes: Memory limit of this model; by default what the device has free.

    Raises:
        LoadError: The function does not trace, needs too much memory, fails, or mixes rows.
    """
    wide = model.x64 or _has_64_bit_inputs(model)
    with watch.preparing(), precision_scope(wide):
        try:
            return _load(model, watch, max_bytes, wide)
        except FirstlightError as error:
            raise LoadError(f"model {model.name!r}: {error}") from None
        except Exception as error:
            raise LoadError(
                f"model {model.name!r} cannot be compiled: {_described(error)}"
            ) from error


def _load(model: Model, watch: CompileWatch, max_bytes: int | None, wide: bool) -> Loaded:
    given = _on_host(model)
    abstract = jax.eval_shape(lambda *leaves: leaves, *given)
    key = kept_programs.key_of(model, abstract, wide)
    signature, executables = _kept(model, abstract, key) or _compiled(
        model, abstract, watch, wide, key
    )
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(abstract))
    needed += max(made.work_bytes for made in executables.values())
    _require_memory(needed, max_bytes)
    parameters = jax.block_until_ready(jax.device_put(given))
    lanes: dict[Sizes, list[Bucket]] = {sizes: [] for sizes in signature.lanes}
    for (sizes, rows), made in executables.items():
        arguments = (*parameters, *example_rows(signature, rows, sizes))
        run = partial(_run_and_wait, made.call, arguments)
        run()  # the first call is not representative
        cost = shortest_seconds(run)
        lanes[sizes].append(Bucket(rows, sizes, made.call, cost, made.seconds, made.from_cache))
    frozen = {sizes: tuple(buckets) for sizes, buckets in lanes.items()}
    loaded = Loaded(model, signature, parameters, frozen, needed, wide)
    for buckets in frozen.values():
        _require_independent_rows(loaded, buckets[-1])
    return loaded


@dataclass(frozen=True)
class _Executable:
    """An executable for given sizes and rows, before its first run."""

    call: Callable[..., Any]
    work_bytes: int  # memory of a call beyond the parameters
    seconds: float
    from_cache: bool


_Executables = dict[tuple[Sizes, int], _Executable]


def _kept(model: Model, abstract: Any, key: str | None) -> tuple[Signature, _Executables] | None:
    """Stored executables of a named program."""
    kept = None if key is None else kept_programs.find(key)
    if kept is None:
        return None
    begin, signature = time.perf_counter(), kept.signature(model)
    calls = kept_programs.loaded(kept, abstract, signature)
    if calls is None:
        return None
    seconds = (time.perf_counter() - begin) / len(calls)
    return signature, {
        (one.sizes, one.rows): _Executable(
            calls[one.sizes, one.rows], one.work_bytes, seconds, from_cache=True
        )
        for one in kept.executables
    }


def _compiled(
    model: Model, abstract: Any, watch: CompileWatch, wide: bool, key: str | None
) -> tuple[Signature, _Executables]:
    """Executables compiled by JAX or loaded from its cache."""
    signature = signature_of(model, abstract)
    program: Any = signature.function

    def one(size: tuple[Sizes, int]) -> _Executable:
        with watch.preparing(), precision_scope(wide):
            begin, hits = time.perf_counter(), watch.cache_hits
            sizes, rows = size
            call = program.lower(*abstract, *signature.structs(rows, sizes)).compile()
            seconds, from_cache = time.perf_counter() - begin, watch.cache_hits > hits
            return _Executable(call, _bytes_at_work(call), seconds, from_cache)

    keys = [(sizes, rows) for sizes in signature.lanes for rows in model.buckets]
    # XLA compiles a program mostly on one core.
    with ThreadPoolExecutor(min(len(keys), os.cpu_count() or 1, 8)) as pool:
        made = dict(zip(keys, pool.map(one, keys), strict=True))
    if key is not None:
        calls = {size: (each.call, each.work_bytes) for size, each in made.items()}
        kept_programs.keep(key, signature, calls)
    return signature, made


def _on_host(model: Model) -> tuple[Any, ...]:
    """The parameters as arrays; numbers get the dtype that they would have in the function."""

    def array(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return leaf
        value = np.asarray(leaf)
        if value.dtype == object or value.dtype.kind in "USOM":
            raise LoadError(f"parameters hold {type(leaf).__name__}: not an array of numbers.")
        return value

    arrays: tuple[Any, ...] = jax.tree.map(array, model.leading)
    return arrays


def _has_64_bit_inputs(model: Model) -> bool:
    leaves = jax.tree.leaves(dict(model.inputs), is_leaf=lambda leaf: hasattr(leaf, "dtype"))
    return any("64" in str(getattr(leaf, "dtype", "")) for leaf in leaves)


def example_rows(signature: Signature, rows: int, sizes: Sizes) -> Arrays:
    """Inputs to try an executable with: the defaults, or ones."""
    named = dict(zip(signature.axes, sizes, strict=True))

    def rows_of(tensor: Tensor) -> np.ndarray[Any, Any]:
        row = (
            np.ones(tensor.sized(named), tensor.dtype) if tensor.default is None else tensor.default
        )
        repeated = rows_for_xla((rows, *row.shape), row.dtype)
        repeated[...] = row
        return repeated

    return [rows_of(tensor) for tensor in signature.inputs]


def aligned_bytes(length: int, first: int = 0) -> np.ndarray[Any, Any]:
    """Memory that XLA reads in place from `first` on.

    What does not begin at a multiple of 64 bytes is copied, and the batch then runs on a thread of
    JAX's: a megabyte takes three times as long.
    """
    whole = np.empty(length + _ALIGNMENT, np.uint8)
    address = whole.__array_interface__["data"][0]  # `whole.ctypes` takes five times as long
    start = -(address + first) % _ALIGNMENT
    return whole[start : start + length]


def rows_for_xla(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array; a large one is aligned so that XLA reads it without copying."""
    length = math.prod(shape) * dtype.itemsize
    if length < _LARGE:
        return np.empty(shape, dtype)
    return aligned_bytes(length).view(dtype).reshape(shape)


def _run_and_wait(call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    jax.block_until_ready(call(*arguments))


def shortest_seconds(call: Callable[[], object]) -> float:
    """The minimum duration of several calls."""
    seconds: list[float] = []
    while len(seconds) < _MAX_RUNS and sum(seconds) < _MAX_SECONDS:
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _require_independent_rows(loaded: Loaded, bucket: Bucket) -> None:
    """Refuse functions that mix rows: the result of a request would depend on other requests."""
    if bucket.rows < 2:
        return
    example = example_rows(loaded.signature, bucket.rows, bucket.sizes)
    changed = [array.copy() for array in example]
    for array in changed:
        poison = True if array.dtype.kind == "b" else np.nan if array.dtype.kind in "fV" else 0
        array[1:] = poison
    before, after = loaded.run(bucket, example), loaded.run(bucket, changed)
    for tensor, a, b in zip(loaded.signature.outputs, before, after, strict=True):
        if a[:1].tobytes() != b[:1].tobytes():
            raise LoadError(
                f"the first row of output {tensor.name!r} changes with the other rows, so requests "
                "in the same batch would affect each other. Make the function act on each row "
                "alone (jax.vmap), or use buckets=(1,)."
            )


def _bytes_at_work(compiled: Any) -> int:
    """Memory of a call beyond the parameters, as XLA plans it."""
    plan = compiled.memory_analysis()
    if plan is None:
        return 0
    return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)


def _require_memory(needed: int, max_bytes: int | None) -> None:
    available = _available_bytes() if max_bytes is None else max_bytes
    if needed > available:
        raise LoadError(
            f"parameters and the largest bucket need {needed / 2**20:.0f} MiB, but only "
            f"{available / 2**20:.0f} MiB may be used. Use smaller buckets or another "
            "--memory-limit."
        )


def _available_bytes() -> int:
    """Free memory of the device, or of the machine for a CPU."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    import psutil

    return int(psutil.virtual_memory().available)


def _described(error: Exception) -> str:
    """The type of an error, its line in the user's code, and the beginning of its message."""
    ours = str(Path(__file__).parents[1])
    places = [
        f"{Path(frame.filename).name}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<")) and "site-packages" not in frame.filename
    ]
    # JAX adds pages of advice that name our own function.
    lines = str(error).strip().splitlines()[: 1 if places else 6]
    place = f" ({places[-1]})" if places else ""
    return f"{type(error).__name__}{place}: " + "\n".join(lines)
