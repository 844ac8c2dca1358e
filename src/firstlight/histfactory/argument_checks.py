"""Checks of numeric arguments, and the error for arguments that do not fit a model.

FirstlightError
└── ModelError    arguments that do not fit the model
"""

from __future__ import annotations

import numpy as np

from firstlight.errors import FirstlightError
from firstlight.histfactory.array_types import Array, ArrayLike, Number
from firstlight.histfactory.lazy_jax import jnp
from firstlight.histfactory.precision import is_traced


class ModelError(FirstlightError):
    """Arguments that do not fit the model: unknown names, wrong lengths, no POI."""


def require_number(value: Number, what: str) -> Number:
    """`value` if it is a finite or a traced number, otherwise a `ModelError`."""
    if is_traced(value) and not np.ndim(value):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ModelError(f"{what} is {value!r}; it must be a number.") from None
    if not np.isfinite(number):
        raise ModelError(f"{what} is {number}; it must be finite.")
    return number


def require_finite(values: Array, what: str) -> Array:
    """`values` if they are finite or traced, otherwise a `ModelError`."""
    if not is_traced(values) and not np.all(np.isfinite(values)):
        raise ModelError(f"{what} must be finite numbers.")
    return values


def as_numbers(values: ArrayLike, what: str) -> Array:
    """A float64 array from anything array-like; traced values are stacked."""
    if is_traced(values):
        return jnp.asarray(values)
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise ModelError(f"{what} must be an array of numbers.") from None
