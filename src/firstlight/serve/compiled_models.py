"""From a declaration to executables, which are compiled, run and timed before the first request."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firstlight.errors import FirstlightError
from firstlight.histfactory.lazy_jax import jax
from firstlight.serve import kept_programs
from firstlight.serve.compile_watch import CompileWatch
from firstlight.serve.declaration import Model
from firstlight.serve.program_text import Traits, traits_of
from firstlight.serve.row_probe import Probe
from firstlight.serve.signature import (
    Signature,
    Sizes,
    Tensor,
    declared_inputs,
    signature_of,
)

#: A bucket is timed by so many runs, or by those that fit into so many seconds.
_MAX_RUNS, _MAX_SECONDS = 50, 0.02
#: Numbers of each parameter that tell whether it has changed.
_SAMPLED = 65_536
#: For trying whether rows affect each other.
_PROBE_SECONDS = 0.5
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
    may_not_end: bool = False  # how long it takes depends on the rows


@dataclass(frozen=True)
class Loaded:
    """A version of a model, compiled and tried; `lanes` has buckets by sizes of variable axes."""

    model: Model
    signature: Signature
    parameters: tuple[Any, ...]
    lanes: Mapping[Sizes, tuple[Bucket, ...]]
    memory_bytes: int
    wide: bool
    digest: str = ""  # of the program and everything declared with it; see `digest_of`

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
            form = (
                ""
                if model.batched
                else (
                    "\nIts function gets one row, without a batch axis; with batched=True, a batch."
                )
            )
            raise LoadError(
                f"model {model.name!r} cannot be compiled: {_described(error)}{form}"
            ) from error


def _load(model: Model, watch: CompileWatch, max_bytes: int | None, wide: bool) -> Loaded:
    given = _on_host(model)
    abstract = jax.eval_shape(lambda *leaves: leaves, *given)
    key = kept_programs.key_of(model, abstract, wide)
    signature, executables = _kept(model, abstract, watch, key) or _compiled(
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
        lanes[sizes].append(
            Bucket(
                rows, sizes, made.call, cost, made.seconds, made.from_cache, made.traits.may_not_end
            )
        )
    frozen = {sizes: tuple(buckets) for sizes, buckets in lanes.items()}
    digest = _digest(model, signature, abstract, given)
    loaded = Loaded(model, signature, parameters, frozen, needed, wide, digest)
    if signature.rows_may_meet:
        more = partial(_one_more, model, abstract, signature)
        require_independent_rows(loaded, next(iter(executables.values())).traits, more)
    return loaded


def digest_of(model: Model, watch: CompileWatch) -> str:
    """The digest that a model would have if it were loaded; it is traced, but not compiled."""
    wide = model.x64 or _has_64_bit_inputs(model)
    with watch.preparing(), precision_scope(wide):
        given = _on_host(model)
        abstract = jax.eval_shape(lambda *leaves: leaves, *given)
        signature = None if model.program is not None else signature_of(model, abstract)
        return _digest(model, signature, abstract, given)


def _digest(model: Model, signature: Signature | None, abstract: Any, given: Any) -> str:
    """A hash of what answers depend on: program, parameters and options."""
    found = hashlib.sha256()
    if model.program is not None:
        found.update(model.program.encode())
    elif signature is not None:
        program: Any = signature.function
        structs = signature.structs(model.buckets[0], signature.lanes[0])
        found.update(program.lower(*abstract, *structs).as_text().encode())
    for leaf in jax.tree.leaves(given):
        array = np.asarray(leaf).ravel()
        found.update(repr((np.shape(leaf), str(array.dtype))).encode())
        # A sample: weights that were trained again differ nearly everywhere.
        found.update(array[:: max(1, array.size // _SAMPLED)].tobytes())
    options = (tuple(model.buckets), sorted(model.axes.items()), model.deadline_seconds)
    tensors = declared_inputs(model)[0]
    defaults = [None if t.default is None else t.default.tolist() for t in tensors]
    found.update(repr((*options, model.queue_rows, tensors, defaults)).encode())
    return found.hexdigest()


@dataclass(frozen=True)
class _Executable:
    """An executable for given sizes and rows, before its first run."""

    call: Callable[..., Any]
    work_bytes: int  # memory of a call beyond the parameters
    seconds: float
    from_cache: bool
    traits: Traits


_Executables = dict[tuple[Sizes, int], _Executable]


def _kept(
    model: Model, abstract: Any, watch: CompileWatch, key: str | None
) -> tuple[Signature, _Executables] | None:
    """Stored executables of a named program."""
    kept = None if key is None else kept_programs.find(key)
    if kept is None:
        return None
    begin, signature = time.perf_counter(), kept.signature(model)
    calls = kept_programs.loaded(kept, abstract, signature)
    if calls is None:
        return None
    watch.loaded_by_name(len(calls))
    seconds = (time.perf_counter() - begin) / len(calls)
    return signature, {
        (one.sizes, one.rows): _Executable(
            call, one.work_bytes, seconds, from_cache=True, traits=traits_of(call.as_text())
        )
        for one in kept.executables
        for call in [calls[one.sizes, one.rows]]
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
            traits = traits_of(call.as_text())
            return _Executable(call, _bytes_at_work(call), seconds, from_cache, traits)

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


def require_independent_rows(
    loaded: Loaded, traits: Traits, more: Callable[[Bucket], Bucket | None] = lambda _: None
) -> None:
    """Refuse functions that mix rows: the result of a request would depend on other requests.

    more: Makes a bucket of another size, to see whether results depend on the number of rows.
    """
    for sizes, buckets in loaded.lanes.items():
        tried = [*buckets]
        if buckets[-1].rows == 1:
            continue
        if len(buckets) == 1 and (other := more(buckets[0])) is not None:
            tried.append(other)
        runs = {bucket.rows: partial(loaded.run, bucket) for bucket in tried}
        probe = Probe(loaded.signature, sizes, runs, traits)
        if (found := probe.mixing(_PROBE_SECONDS / len(loaded.lanes))) is not None:
            raise LoadError(
                f"{found}: requests in the same batch would affect each other. Declare a function "
                "of one row, which the server vectorizes (serve.model without batched=True), or "
                "use buckets=(1,)."
            )
        if probe.error is not None:
            raise LoadError(
                "whether its rows affect each other cannot be tried, because it fails for every "
                f"random row: {_described(probe.error)}. Declare a function of one row, which the "
                "server vectorizes (serve.model without batched=True)."
            )


def _one_more(
    model: Model, abstract: tuple[Any, ...], signature: Signature, like: Bucket
) -> Bucket | None:
    """A bucket with twice as many rows; None if the function does not take as many."""
    rows = 2 * like.rows
    try:
        program = signature_of(model, abstract).function  # a kept signature has no program
        call = program.lower(*abstract, *signature.structs(rows, like.sizes)).compile()  # type: ignore[attr-defined]
    except Exception:
        return None
    return replace(like, rows=rows, call=call)


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
