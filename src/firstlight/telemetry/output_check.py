"""Whether equal inputs give equal outputs, to the last bit: what a fixed seed promises."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from hashlib import blake2b
from typing import ParamSpec, TypeVar

from firstlight.telemetry import metrics
from firstlight.telemetry.starting import current
from firstlight.telemetry.warning_line import say_once
from firstlight.telemetry.watch.guard import guarded

_P = ParamSpec("_P")
_R = TypeVar("_R")


def watch_outputs(
    function: Callable[_P, _R], *, name: str | None = None, remember: int = 64
) -> Callable[_P, _R]:
    """`function`, whose outputs are compared with those of earlier calls with equal inputs.

    The inputs and outputs of every call are read and hashed, so each call waits for its results:
    it is meant for a canary (a fixed batch with a fixed seed, now and then), not for each step. The
    last `remember` inputs are known again.
    """
    label = str(name or getattr(function, "__name__", "function"))[:100]
    seen: OrderedDict[bytes, bytes] = OrderedDict()

    def compare(inputs: bytes, outputs: bytes) -> None:
        watch = current()
        before = seen.pop(inputs, None)
        seen[inputs] = outputs
        if len(seen) > remember:
            seen.popitem(last=False)
        if watch is None or before is None:
            return
        result = "same" if before == outputs else "different"
        watch.values.counter(
            metrics.COMPARED_OUTPUTS, watch.steps.functions.label(label), result
        ).add()
        if result == "different":
            say_once(f"drift {label}", f"{label} gave other results for the same inputs.")

    @wraps(function)
    def watched(*arguments: _P.args, **named: _P.kwargs) -> _R:
        if current() is None:
            return function(*arguments, **named)
        inputs = _digest((arguments, named))  # before the call, which may use them up
        result = function(*arguments, **named)
        guarded(lambda: compare(inputs, _digest(result)))()
        return result

    return watched


def _digest(tree: object) -> bytes:
    """Of the values, types and structure of a tree of arrays."""
    import jax
    import numpy as np

    leaves, structure = jax.tree_util.tree_flatten(tree)
    digest = blake2b(str(structure).encode(), digest_size=16)
    for leaf in leaves:
        is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(
            leaf.dtype, jax.dtypes.prng_key
        )
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(leaf).encode() if array.dtype.hasobject else array.tobytes())
    return digest.digest()
