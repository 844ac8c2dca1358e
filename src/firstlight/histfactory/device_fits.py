"""Many fits on the devices of this host, in chunks that fit their memory."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from firstlight.histfactory.array_types import Array
from firstlight.histfactory.blas_threads import one_blas_thread
from firstlight.histfactory.devices import ROWS, copied, divided, filled, mesh_of
from firstlight.histfactory.lanes import Work, lowest_of_each
from firstlight.histfactory.lazy_jax import jax
from firstlight.histfactory.likelihood import Prepared
from firstlight.histfactory.newton import Minimum, Problem
from firstlight.histfactory.numpy_or_jax import map_leaves
from firstlight.histfactory.precision import float64_scope
from firstlight.histfactory.programs import compiler_options

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from jax.sharding import NamedSharding

#: Fits per device and call of the program: many, because the last of them run on few lanes.
_CHUNK, _CHUNK_ON_CPU = 1 << 17, 1 << 10
#: Numbers per array of an evaluation, over all lanes of an accelerator (2 GiB).
_NUMBERS = 1 << 28
_MAX_LANES = 1 << 13
#: Up to this many fits run on fewer lanes, whose program compiles in half the time.
_FEW_ROWS, _FEW_LANES = 1 << 12, 1 << 8
#: Chunks at a time: one is computed while another is copied.
_AT_A_TIME = 2
#: Arrays of an evaluation that a lane holds, and numbers per parameter that a fit keeps.
_ARRAYS, _KEPT = 8, 40


_T = TypeVar("_T")


class Occupancy(NamedTuple):
    """How many fits a device works on."""

    chunk: int  # per call of the program
    lanes: int  # side by side


def occupancy_of(prepared: Prepared, device: jax.Device) -> Occupancy:
    """The chunk and lanes that fill a device within its memory; on a CPU, one fit at a time."""
    if device.platform == "cpu":
        return Occupancy(_CHUNK_ON_CPU, 1)
    memory = (device.memory_stats() or {}).get("bytes_limit", 1 << 33) // (2 * _AT_A_TIME * 8)
    lanes = min(_NUMBERS, memory // _ARRAYS) // prepared.cells
    chunk = memory // (_KEPT * prepared.weight.shape[0])
    return Occupancy(min(_at_most(chunk), _CHUNK), min(_at_most(lanes), _MAX_LANES))


def fits_on_devices(
    prepared: Prepared,
    problems: Problem,
    devices: tuple[jax.Device, ...],
    progress: Callable[[int, int], None],
    note_work: Callable[[Work], None] = lambda work: None,
    occupancy: Occupancy | None = None,
) -> Minimum:
    """Minima of problems stacked on a leading axis, divided among the devices.

    note_work: called with the work of each chunk, per device. occupancy: default, `occupancy_of`.
    """
    from concurrent.futures import ThreadPoolExecutor  # not needed by a few fits

    n = len(problems.start)
    occupancy = occupancy or occupancy_of(prepared, devices[0])
    size = len(devices) * min(_power_of_two(-(-n // len(devices))), occupancy.chunk)
    few = size // len(devices) <= _FEW_ROWS
    lanes = min(occupancy.lanes, _FEW_LANES) if few else occupancy.lanes
    program = _program(devices, lanes, _common(problems))
    shardings = _shardings(devices, problems)
    chunks = [slice(begin, min(begin + size, n)) for begin in range(0, n, size)]

    def run(rows: slice) -> tuple[Minimum, Work]:
        with float64_scope():  # holds for this thread only
            placed = jax.device_put(_filled(problems, rows, size), shardings)
            found: tuple[Minimum, Work] = jax.device_get(
                program(prepared.on(copied(devices)), *placed)
            )
            return found

    on_cpu = devices[0].platform == "cpu"
    alone = on_cpu or len(chunks) == 1
    together: Minimum | None = None
    with (
        one_blas_thread() if on_cpu else contextlib.nullcontext(),
        ThreadPoolExecutor(1 if alone else _AT_A_TIME) as pool,
    ):
        for rows, (found, work) in zip(chunks, _in_turn(pool, run, chunks), strict=True):
            if together is None:
                together = map_leaves(lambda a: np.empty((n, *a.shape[1:]), a.dtype), found)
            map_leaves(partial(_put, rows), together, found)
            note_work(work)
            progress(rows.stop, n)
    assert together is not None
    return together


def _in_turn(
    pool: ThreadPoolExecutor, run: Callable[[slice], _T], chunks: Sequence[slice]
) -> Iterator[_T]:
    """The results in order, with at most `_AT_A_TIME` chunks begun and not yet returned."""
    begun = deque(pool.submit(run, rows) for rows in chunks[:_AT_A_TIME])
    for rows in [*chunks[_AT_A_TIME:], *[None] * _AT_A_TIME][: len(chunks)]:
        found = begun.popleft().result()
        if rows is not None:
            begun.append(pool.submit(run, rows))
        yield found


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`; few sizes need few executables."""
    return 1 << max(n - 1, 0).bit_length()


def _at_most(n: int) -> int:
    """The largest power of two that is at most `n`."""
    return 1 << max(int(n).bit_length() - 1, 0)


def _common(problems: Problem) -> tuple[bool, ...]:
    """Which leaves, except the data, repeat one row, which is then copied only once."""
    return tuple(np.asarray(leaf).strides[0] == 0 for leaf in problems[1:])


def _filled(problems: Problem, rows: slice, size: int) -> tuple[Problem, Array]:
    """Some rows of the problems, filled up to `size`, and a mask of the wanted ones."""
    count = rows.stop - rows.start

    def fill(array: Array) -> Array:
        return array[rows] if count == size else filled(array[rows], size)

    common = _common(problems)
    leaves = [
        leaf[:1] if same else fill(leaf) for leaf, same in zip(problems[1:], common, strict=True)
    ]
    return Problem(map_leaves(fill, problems.data), *leaves), np.arange(size) < count


def _put(rows: slice, whole: Array, some: Array) -> None:
    whole[rows] = some[: rows.stop - rows.start]


def _shardings(devices: tuple[jax.Device, ...], problems: Problem) -> tuple[Problem, NamedSharding]:
    every, rows = copied(devices), divided(devices)
    leaves = (every if same else rows for same in _common(problems))
    return Problem(map_leaves(lambda _: rows, problems.data), *leaves), rows


@cache
def _program(
    devices: tuple[jax.Device, ...], lanes: int, common: tuple[bool, ...]
) -> Callable[..., tuple[Minimum, Work]]:
    """`lowest_of_each` on every device, for its rows."""
    every, rows = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(ROWS)

    def on_each_device(*arguments: Any) -> tuple[Minimum, Work]:
        found, work = lowest_of_each(*arguments, lanes=lanes)
        return found, map_leaves(lambda count: count[None], work)

    problems = Problem(rows, *(every if same else rows for same in common))
    # Nothing is exchanged between devices, so there is nothing for JAX to check.
    spread = jax.shard_map(
        on_each_device,
        mesh=mesh_of(devices),
        in_specs=(every, problems, rows),
        out_specs=rows,
        check_vma=False,
    )
    compiled: Callable[..., tuple[Minimum, Work]] = jax.jit(
        spread, compiler_options=compiler_options()
    )
    return compiled
