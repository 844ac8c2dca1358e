"""The declaration of a model: its function, its inputs and the sizes to compile for.

Standard library only: declaring a model imports no framework.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from firstlight.errors import FirstlightError

#: Default batch sizes, in rows.
BUCKETS = (1, 2, 4, 8, 16, 32)
MAX_ROWS = 65_536
#: Per model: each executable takes time to compile and memory to hold.
MAX_EXECUTABLES = 256
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: NumPy's names of dtypes and the Open Inference Protocol's.
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


class DeclarationError(FirstlightError):
    """A model whose declaration cannot be served."""


class _Nothing:
    """The default of `parameters`, because None is a valid value."""


@dataclass(frozen=True)
class Input:
    """One input tensor of a request; `shape` leaves out its leading axis, the rows.

    Args:
        dtype: Such as "float32".
        shape: Shape of one row. A string names a variable axis; the model's `axes` lists its sizes.
        default: One row, used when a request leaves this input out.
        fill: The value that pads variable axes.
    """

    dtype: str = "float32"
    shape: Sequence[int | str] = ()
    default: Any = None
    fill: float = 0

    def __post_init__(self) -> None:
        if self.dtype not in DATATYPES:
            known = ", ".join(DATATYPES)
            raise DeclarationError(f"dtype {self.dtype!r} cannot be served. Choose from {known}.")
        object.__setattr__(self, "shape", tuple(self.shape))
        for size in self.shape:
            if not isinstance(size, str) and (not isinstance(size, int) or size < 1):
                raise DeclarationError(f"shape {self.shape}: {size!r} is not an axis size.")

    @property
    def variable_axes(self) -> tuple[str, ...]:
        return tuple(size for size in self.shape if isinstance(size, str))


@dataclass(frozen=True)
class Model:
    """A function and everything needed to compile it before the first request; see `model`."""

    function: Callable[..., object]
    inputs: Mapping[str, Any]
    name: str
    version: str = "1"
    about: str = ""
    parameters: object = field(default=_Nothing, repr=False)
    buckets: Sequence[int] = BUCKETS
    axes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    deadline_seconds: float = 10.0
    max_queue_rows: int | None = None
    x64: bool = False
    compiler_options: Mapping[str, object] | None = None
    canary_share: float | None = None
    program: str | None = None
    batched: bool = False
    in_turn: bool = False  # rows one after another, where vectorized ones would wait for each other

    def __post_init__(self) -> None:
        try:
            _require_names(self)
            _require_sizes(self)
        except DeclarationError as error:
            raise DeclarationError(f"model {self.name!r}: {error}") from None

    def __call__(self, *arguments: object, **inputs: object) -> Any:
        """Call the function with its parameters."""
        return self.function(*self.leading, *arguments, **inputs)

    @property
    def leading(self) -> tuple[Any, ...]:
        """The arguments before the inputs: the parameters, if there are any."""
        return () if self.parameters is _Nothing else (self.parameters,)

    @property
    def queue_rows(self) -> int:
        """The maximum number of rows in the queue."""
        return 32 * max(self.buckets) if self.max_queue_rows is None else self.max_queue_rows


class FrozenOptions(TypedDict, total=False):
    """Options of any model, documented in `model`."""

    version: str
    about: str
    deadline_seconds: float
    max_queue_rows: int | None
    canary_share: float | None


class ModelOptions(FrozenOptions, total=False):
    """Options of a model whose function is compiled."""

    parameters: object
    buckets: Sequence[int]
    axes: Mapping[str, Sequence[int]]
    x64: bool
    compiler_options: Mapping[str, object] | None
    program: str | None
    batched: bool


def model(
    *, inputs: Mapping[str, Any], name: str | None = None, **options: Unpack[ModelOptions]
) -> Callable[[Callable[..., object]], Model]:
    """Declare the decorated function as a model.

    The function is called as `f(parameters, **inputs)`, or `f(**inputs)` without parameters, with
    the inputs of one row: there is no batch axis. It returns an array or a tree of arrays. The
    server applies `jax.vmap`, so the result of a row cannot depend on the rows of other clients.

    Args:
        inputs: Each name's `Input`, or a tree (dict, list, tuple) of them.
        name: By default the function's name.
        options: `parameters` (any tree of arrays, kept on the device), `version`, `buckets` (batch
            sizes to compile), `axes` ({name of a variable axis: sizes}), `deadline_seconds` (for
            requests without a deadline), `max_queue_rows`, `x64` (compute in 64 bits; implied by
            64-bit inputs), `compiler_options` (passed to XLA), `about` (a one-line description),
            `canary_share` (the share of requests that a new version gets beside the current one),
            `program` (a string that changes whenever the function or a constant in it does, such as
            a commit: with the same string, a restart loads executables without tracing), `batched`
            (the function takes whole batches: the leading axis of its inputs and outputs is the
            rows. The result of a row must not depend on the others, which is tried with random
            rows before the model is served; what depends on rare values may not be found).
    """

    def declare(function: Callable[..., object]) -> Model:
        if not callable(function):
            raise DeclarationError(f"{function!r} is not a function.")
        called = str(getattr(function, "__name__", "model"))
        named = name or (called if called.isidentifier() else "model")  # a lambda's is not
        about = options.get("about") or (function.__doc__ or "").strip().partition("\n")[0]
        described: ModelOptions = {**options, "about": about}
        return Model(function, inputs, named, **described)

    return declare


def _require_names(given: Model) -> None:
    for what, text in (("name", given.name), ("version", given.version)):
        if not isinstance(text, str) or not NAME.fullmatch(text):
            raise DeclarationError(
                f"the {what} {text!r} must be 1 to 64 letters, digits, '.', '_' or '-': it "
                "becomes part of a URL."
            )
    if not isinstance(given.inputs, Mapping) or not given.inputs:
        raise DeclarationError("inputs must be a mapping of names to serve.Input.")


def _require_sizes(given: Model) -> None:
    _require_increasing("buckets", given.buckets)
    for name, sizes in given.axes.items():
        _require_increasing(f"axes[{name!r}]", sizes)
    executables = len(given.buckets) * math.prod(map(len, given.axes.values()))
    if executables > MAX_EXECUTABLES:
        raise DeclarationError(
            f"{executables} combinations of sizes, each of which would be compiled, are more than "
            f"{MAX_EXECUTABLES}. Use fewer buckets."
        )
    if given.canary_share is not None and not 0 <= given.canary_share <= 1:
        raise DeclarationError("canary_share must be between 0 and 1.")
    if given.deadline_seconds <= 0:
        raise DeclarationError("deadline_seconds must be positive.")


def _require_increasing(what: str, sizes: Sequence[int]) -> None:
    whole = all(isinstance(size, int) and 1 <= size <= MAX_ROWS for size in sizes)
    if not sizes or not whole or list(sizes) != sorted(set(sizes)):
        raise DeclarationError(
            f"{what} is {tuple(sizes)!r}: give increasing whole numbers from 1 to {MAX_ROWS}."
        )
