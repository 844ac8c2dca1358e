"""What a request may say about a tensor: every dtype's range, and every shape."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from firstlight.serve.declaration import DATATYPES
from firstlight.serve.signature import Tensor
from firstlight.serve.tensors import InvalidRequestError, as_array, reshape


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _largest(dtype: np.dtype[Any]) -> float:
    """What rounds to infinity from here on: half a unit above the largest number."""
    about = ml_dtypes.finfo(dtype)
    largest = Fraction(float(about.max))
    below = Fraction(float(np.nextafter(about.max, dtype.type(0))))
    if about.bits == 64:
        return math.inf
    # A bfloat16 is made of a float32, so a number rounds twice.
    first = Fraction(2) ** 103 if dtype.name == "bfloat16" else 0
    return float(largest + (largest - below) / 2 - first)


@pytest.mark.parametrize("name", [name for name in DATATYPES if "float" in name])
def test_a_float_that_the_dtype_cannot_hold_is_refused_and_never_infinite(name: str) -> None:
    tensor, limit = Tensor("x", _dtype(name), ()), _largest(_dtype(name))
    draw = random.Random(1)
    numbers = [draw.choice([-1, 1]) * 10 ** draw.uniform(-5, 308) for _ in range(2000)]
    largest = float(ml_dtypes.finfo(tensor.dtype).max)
    with np.errstate(over="raise"):  # as in the server
        edges = [] if limit == math.inf else [limit, -limit, float(np.nextafter(limit, 0))]
        for number in [*numbers, *edges, largest, -largest, 1e39, 1e308]:
            try:
                array = as_array(tensor, [0.5, number])
            except InvalidRequestError as error:
                assert abs(number) >= limit and "out of range" in str(error), number
            else:
                assert abs(number) < limit and np.isfinite(array.astype(float)).all(), number


@pytest.mark.parametrize("name", [name for name in DATATYPES if "int" in name])
def test_an_integer_that_the_dtype_cannot_hold_is_refused(name: str) -> None:
    limits, tensor = np.iinfo(name), Tensor("x", _dtype(name), ())
    for number in (limits.min, limits.max, limits.min - 1, limits.max + 1, 2**64, -(10**30)):
        if limits.min <= number <= limits.max:
            assert as_array(tensor, [int(number)]).tolist() == [number]
        else:
            with pytest.raises(InvalidRequestError, match="out of range"):
                as_array(tensor, [int(number)])


def test_only_shapes_of_the_numbers_that_were_sent_are_read() -> None:
    draw = random.Random(2)
    tensor = Tensor("x", _dtype("float32"), (2, "n"))
    dimensions = [0, 1, 2, 3, 4, 6, 12, -1, -2, 2**31, 2**63, 10**30]
    read = 0
    for _ in range(20_000):
        shape = [draw.choice(dimensions) for _ in range(draw.choice([0, 1, 2, 3, 4, 65, 1000]))]
        array = np.zeros(draw.choice([0, 1, 4, 12]), np.float32)
        fits = min(shape, default=0) > 0 and math.prod(shape) == len(array)
        try:
            assert reshape(tensor, array, shape).shape == tuple(shape) and fits
            read += 1
        except InvalidRequestError as error:
            assert "'x'" in str(error) and len(str(error)) < 500
            assert not fits or len(shape) > 4, shape
    assert read > 100
    with pytest.raises(InvalidRequestError):
        reshape(tensor, np.zeros(1, np.float32), [1] * 65)
