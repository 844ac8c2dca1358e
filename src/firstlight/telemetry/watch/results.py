"""NaN in results of jitted functions: small ones, at most one per second, read by our thread."""

from __future__ import annotations

from typing import Any

from firstlight.telemetry import metrics
from firstlight.telemetry.values import Values
from firstlight.telemetry.watch.functions import Function, Functions

#: Larger results are not fetched from the device.
_MAX_SIZE = 4096


def check_results(values: Values, functions: Functions) -> None:
    """Look at the results that were kept in view since the last time."""
    for function in functions:
        found = _found(function)
        if found is not None:
            values.counter(metrics.CHECKED_RESULTS, function.name, found).add()


def _found(function: Function) -> str | None:
    """Whether a NaN is in a call's results; None: they are not there, or too large."""
    import numpy as np

    results, function.unchecked = function.unchecked, ()
    held = [array for one in results if (array := one()) is not None and _may_be_read(array)]
    kinds = [np.asarray(array) for array in held]
    floats = [a for a in kinds if a.dtype.kind in "fcV"]  # V: bfloat16 and its like
    if not floats:
        return None
    return "nan" if any(np.isnan(a).any() for a in floats) else "finite"


def _may_be_read(array: Any) -> bool:
    is_here = not array.is_deleted() and array.is_fully_addressable
    return bool(is_here and array.size <= _MAX_SIZE and array.is_ready())
