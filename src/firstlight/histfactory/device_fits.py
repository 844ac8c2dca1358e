"""Many fits on the devices of this host, in chunks that fit their memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

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

#: Fits per device and call of the program: many, because the last of them run on few lanes.
_CHUNK, _CHUNK_ON_CPU = 1 << 16, 1 << 10
#: Lanes of an accelerator hold about so many numbers per array of an evaluation (1 GiB).
_NUMBERS = 1 << 27
_MAX_LANES = 1 << 13


def fits_on_devices(
    prepared: Prepared,
    problems: Problem,
    devices: tuple[Any, ...],
    progress: Callable[[int, int], None],
    note_work: Callable[[Work], None] = lambda work: None,
) -> Minimum:
    """Minima of problems stacked on a leading axis, divided among the devices.

    note_work: called with what each chunk took, on each device.
    """
    n = len(problems.start)
    on_cpu = devices[0].platform == "cpu"
    per_device = _power_of_two(-(-n // len(devices)))
    size = len(devices) * min(per_device, _CHUNK_ON_CPU if on_cpu else _CHUNK)
    program = _program(devices, lanes_for(prepared, on_cpu), _common(problems))
    found: Minimum | None = None
    with float64_scope(), one_blas_thread() if on_cpu else contextlib.nullcontext():
        for begin in range(0, n, size):
            rows = slice(begin, min(begin + size, n))
            chunk, wanted = _filled(problems, rows, size)
            placed = jax.device_put((chunk, wanted), _shardings(devices, problems))
            some, work = jax.device_get(program(prepared.on(copied(devices)), *placed))
            if found is None:
                found = map_leaves(lambda a: np.empty((n, *a.shape[1:]), a.dtype), some)
            map_leaves(partial(_put, rows), found, some)
            note_work(work)
            progress(rows.stop, n)
    assert found is not None
    return found


def lanes_for(prepared: Prepared, on_cpu: bool) -> int:
    """How many fits run side by side on a device: on a CPU, one; an accelerator is filled."""
    if on_cpu:
        return 1
    fitting = max(_NUMBERS // prepared.cells, 1)
    return min(_power_of_two(fitting + 1) // 2, _MAX_LANES)


def _power_of_two(n: int) -> int:
    """The smallest that is at least `n`: few sizes, so few executables."""
    return 1 << max(n - 1, 0).bit_length()


def _common(problems: Problem) -> tuple[bool, ...]:
    """Which leaves, except the data, are one array repeated, which need not be copied."""
    return tuple(np.asarray(leaf).strides[0] == 0 for leaf in problems[1:])


def _filled(problems: Problem, rows: slice, size: int) -> tuple[Problem, Array]:
    """Some of the problems, filled up to `size`, and which rows are wanted."""
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


def _shardings(devices: tuple[Any, ...], problems: Problem) -> Any:
    every, rows = copied(devices), divided(devices)
    leaves = (every if same else rows for same in _common(problems))
    return Problem(map_leaves(lambda _: rows, problems.data), *leaves), rows


@cache
def _program(devices: tuple[Any, ...], lanes: int, common: tuple[bool, ...]) -> Any:
    """`lowest_of_each` on every device, for the rows that it has."""
    every, rows = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(ROWS)

    def on_each_device(*arguments: Any) -> Any:
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
    return jax.jit(spread, compiler_options=compiler_options())
