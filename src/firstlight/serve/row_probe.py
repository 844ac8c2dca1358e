"""Looks for rows that affect each other, in functions that take whole batches.

A row is put at a random position among random others, in batches of every size. Its result must
not change with the others, and must be that of the row alone. Dependence that needs rare values is
not found: a function of one row, which the server vectorizes, needs no probe.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from firstlight.serve.program_text import Traits
from firstlight.serve.signature import Signature, Sizes, Tensor

Array = np.ndarray[Any, Any]
Arrays = list[Array]
Run = Callable[[Arrays], Arrays]

#: Each round tries every size once. More rounds follow while they take little time.
_MIN_ROUNDS, _MAX_ROUNDS = 8, 24
_SECONDS = 0.5
#: Differences allowed, in units of the rounding error: with other values in the same place of the
#: same program, and with another place or program.
_SAME_PLACE, _ELSEWHERE = 100, 1000
_MAX_TOLERANCE = 0.05
#: Kinds of other rows: copies, random ones, and six extreme values.
_TURNS = 8
#: A result may change by so many times what rounding errors of its row change.
_CONDITION, _NUDGES = 16, 8


@dataclass(frozen=True)
class Mixing:
    """A row whose result is not its own."""

    output: str
    position: int
    size: int
    row: str
    found: str
    otherwise: str

    def __str__(self) -> str:
        return (
            f"output {self.output!r} of the row {self.row} is {self.found} at position "
            f"{self.position} of {self.size} rows, and {self.otherwise}"
        )


class Probe:
    """Tries the executables of one lane; `runs` are by number of rows."""

    def __init__(
        self,
        signature: Signature,
        sizes: Sizes,
        runs: Mapping[int, Run],
        traits: Traits,
        seed: int = 0,
    ) -> None:
        self._signature, self._runs, self._traits = signature, runs, traits
        named = dict(zip(signature.axes, sizes, strict=True))
        self._shapes = [tensor.sized(named) for tensor in signature.inputs]
        self._draw = np.random.default_rng(seed)
        self._smallest = min(runs)
        self._turns = itertools.cycle(range(_TURNS))
        self.error: Exception | None = None  # the last one, if no row could be tried

    def mixing(self, seconds: float = _SECONDS) -> Mixing | None:
        """What shows that rows affect each other, if anything does."""
        sizes = [size for size in sorted(self._runs) if size > 1]
        end, tried = time.perf_counter() + seconds, 0
        for round_ in range(_MAX_ROUNDS if sizes else 0):
            if round_ >= _MIN_ROUNDS and time.perf_counter() > end:
                break
            for size in sizes:
                try:
                    found = self._tried(size)
                except Exception as error:  # of the function, which need not accept any number
                    self.error = error
                    continue
                tried += 1
                if found is not None:
                    return found
        if tried:
            self.error = None
        return None

    def _tried(self, size: int) -> Mixing | None:
        position = int(self._draw.integers(size))
        row = self._rows(1)
        first, second = (
            self._among(self._rows(size), position, row),
            self._unlike(size, position, row),
        )
        run = self._runs[size]
        a, b = _at(run(first), position), _at(run(second), position)
        if self._differs(a, b, _SAME_PLACE) is not None:
            # Again: the sums of some devices differ from call to call.
            a, b = _at(run(first), position), _at(run(second), position)
            if (output := self._differs(a, b, _SAME_PLACE)) is not None:
                return self._described(output, position, size, row, a, b, "there among others")
        if self._moved(size, position, row, a) is None:
            return None
        # Again with another row: a rounding error may have crossed a threshold.
        row = self._rows(1)
        a = _at(run(self._among(self._rows(size), position, row)), position)
        if (moved := self._moved(size, position, row, a)) is None:
            return None
        output, alone = moved
        return self._described(output, position, size, row, a, alone, "alone")

    def _moved(
        self, size: int, position: int, row: Arrays, found: Arrays
    ) -> tuple[int, Arrays] | None:
        """The output that differs from that of the row alone, beyond rounding."""
        alone = self._alone(row)
        if self._differs(found, alone, _ELSEWHERE) is None:
            return None
        noise = [np.zeros(np.shape(leaf)) for leaf in alone]
        for _ in range(_NUDGES):
            with np.errstate(all="ignore"):
                near = self._alone([self._nudged(array) for array in row])
                changes = [abs(_wide(x) - _wide(y)) for x, y in zip(near, alone, strict=True)]
                noise = [np.maximum(n, c) for n, c in zip(noise, changes, strict=True)]
        output = self._differs(found, alone, _ELSEWHERE, noise)
        return None if output is None else (output, alone)

    def _alone(self, row: Arrays) -> Arrays:
        """The result of a row without others: in the smallest bucket, padded as requests are."""
        repeated = [np.repeat(array, self._smallest, axis=0) for array in row]
        return _at(self._runs[self._smallest](repeated), 0)

    def _nudged(self, array: Array) -> Array:
        if array.dtype.kind not in "fV":
            return array
        signs = self._draw.choice([-1.0, 1.0], array.shape)
        nudged = array.astype(np.float64) * (1 + 2 * self._traits.epsilon * signs)
        near: Array = nudged.astype(array.dtype)
        return near

    def _differs(
        self, found: Arrays, wanted: Arrays, units: int, noise: Arrays | None = None
    ) -> int | None:
        """The first output that differs by more than rounding."""
        relative = min(units * self._traits.epsilon, _MAX_TOLERANCE)
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if a.dtype.kind not in "fV":
                if not np.array_equal(a, b):
                    return i
                continue
            x, y = _wide(a), _wide(b)
            with np.errstate(all="ignore"):
                same = (x == y) | (np.isnan(x) & np.isnan(y))
                scale = float(np.max(abs(y), initial=0.0, where=np.isfinite(y)))
                allowed = relative * scale + (0 if noise is None else _CONDITION * noise[i])
                if not np.all(same | (abs(x - y) <= allowed)):
                    return i
        return None

    def _described(
        self, output: int, position: int, size: int, row: Arrays, a: Arrays, b: Arrays, where: str
    ) -> Mixing:
        tensor = self._signature.outputs[output]
        x, y = a[output], b[output]
        worst = _worst(x, y)
        values = [str(np.asarray(leaf)[worst]) for leaf in (x, y)]
        given = ", ".join(
            f"{tensor.name}={_short(array)}"
            for tensor, array in zip(self._signature.inputs, row, strict=True)
        )
        return Mixing(tensor.name, position, size, given, values[0], f"{values[1]} {where}")

    def _unlike(self, size: int, position: int, row: Arrays) -> Arrays:
        """A row among random others, copies of itself, or an extreme value, in turns."""
        turn = next(self._turns)
        if turn == 0:
            return [np.repeat(array, size, axis=0) for array in row]
        others = self._rows(size)
        if turn > 1 and not self._traits.may_not_end:
            for array in others:
                extremes = _extremes(array.dtype)
                array[...] = extremes[turn % len(extremes)]
        return self._among(others, position, row)

    def _among(self, others: Arrays, position: int, row: Arrays) -> Arrays:
        for array, part in zip(others, row, strict=True):
            array[position] = part[0]
        return others

    def _rows(self, rows: int) -> Arrays:
        return [
            _random(tensor, (rows, *shape), self._draw, self._traits.may_not_end)
            for tensor, shape in zip(self._signature.inputs, self._shapes, strict=True)
        ]


def _random(
    tensor: Tensor, shape: tuple[int, ...], draw: np.random.Generator, gentle: bool
) -> Array:
    """Random values of a type; gentle: small ones, for which most loops end."""
    dtype = tensor.dtype
    if dtype.kind == "b":
        flags: Array = draw.random(shape) < draw.choice([0.1, 0.5, 0.9])
        return flags
    if dtype.kind in "iu":
        return _integers(dtype, shape, draw, gentle)
    if tensor.default is not None and draw.random() < 0.5:
        near = tensor.default.astype(np.float64) * (1 + 0.1 * draw.normal(size=shape))
        return near.astype(dtype)
    if gentle or draw.random() < 0.3:
        values = draw.random(shape) * draw.choice([1.0, 1.0, 30.0, 1e3])
    else:
        powers = [1e-3, 1.0, 1.0, 30.0, 1e3, float(_largest(dtype)) ** 0.5]
        values = draw.normal(size=shape) * draw.choice(powers)
    if len(shape) > 2 and shape[-1] == shape[-2] and draw.random() < 0.5:
        # Positive definite: other matrices have no Cholesky factor.
        values = values @ np.swapaxes(values, -1, -2) + np.eye(shape[-1]) * abs(values).max()
    largest = float(_largest(dtype))
    numbers: Array = np.clip(values, -largest, largest).astype(dtype)
    return numbers


def _integers(
    dtype: np.dtype[Any], shape: tuple[int, ...], draw: np.random.Generator, gentle: bool
) -> Array:
    limits = np.iinfo(dtype)
    ranges = [(0, 2), (0, 8)]
    if not gentle:
        ranges += [(0, 100), (max(-8, int(limits.min)), 8), (int(limits.min), int(limits.max))]
    low, high = ranges[int(draw.integers(len(ranges)))]
    return draw.integers(low, high, shape, dtype=dtype)


def _extremes(dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        return np.array([np.iinfo(dtype).min, 0, np.iinfo(dtype).max], dtype)
    largest = float(_largest(dtype))
    return np.array([np.nan, np.inf, -np.inf, 0.0, largest, -largest]).astype(dtype)


def _largest(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "f":
        return float(np.finfo(dtype).max)
    import ml_dtypes  # of bfloat16

    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]


def _at(outputs: Arrays, position: int) -> Arrays:
    return [np.array(output[position]) for output in outputs]


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _worst(x: Array, y: Array) -> tuple[int, ...]:
    """Where two results differ most."""
    with np.errstate(all="ignore"):
        apart = np.nan_to_num(abs(_wide(x) - _wide(y)), nan=np.inf)
    apart = np.where((x == y) | ((x != x) & (y != y)), -1.0, apart)
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(apart)), apart.shape))


def _short(array: Array) -> str:
    """The beginning of a row."""
    flat = array.ravel()
    numbers = ", ".join(f"{value:.6g}" if value.dtype.kind == "f" else str(value)
                        for value in flat[:4])  # fmt: skip
    return f"[{numbers}{', …' if flat.size > 4 else ''}]"
