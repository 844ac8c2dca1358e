"""What a user says about a model: its function, its inputs, the sizes to compile for.

Standard library only: a file that declares models imports nothing by that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

from firstlight.errors import FirstlightError

#: Rows of a batch that are compiled for, unless a model says otherwise.
BUCKETS = (1, 2, 4, 8, 16, 32)
MAX_ROWS = 65_536
#: Executables of one model: each takes time to compile and memory to hold.
MAX_EXECUTABLES = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: Names of the Open Inference Protocol.
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


class DeclarationError(FirstlightError):
    """A model that cannot be served as it is declared."""


class _Nothing:
    """No parameters, as opposed to parameters that are None."""


@dataclass(frozen=True)
class Input:
    """One tensor of a request; its leading axis, the rows, is not part of `shape`.

    Args:
        dtype: Such as "float32".
        shape: Of one row. A text names a variable axis, whose sizes are in the model's `axes`.
        default: One row to use where a request leaves this input out.
        fill: What variable axes are padded with.
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
                raise DeclarationError(f"shape {self.shape}: {size!r} is no size of an axis.")

    @property
    def variable_axes(self) -> tuple[str, ...]:
        return tuple(size for size in self.shape if isinstance(size, str))


@dataclass(frozen=True)
class Model:
    """A function and what is needed to compile it before the first request; made by `model`."""

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
    compute_dtype: str | None = None
    max_relative_error: float = 0.01
    examples: Mapping[str, object] | None = field(default=None, repr=False)
    program: str | None = None

    def __post_init__(self) -> None:
        try:
            _require_names(self)
            _require_sizes(self)
        except DeclarationError as error:
            raise DeclarationError(f"model {self.name!r}: {error}") from None

    def __call__(self, *arguments: object, **inputs: object) -> Any:
        """The function itself, with its parameters."""
        return self.function(*self.leading, *arguments, **inputs)

    @property
    def leading(self) -> tuple[Any, ...]:
        """What the function is given before its inputs."""
        return () if self.parameters is _Nothing else (self.parameters,)

    @property
    def queue_rows(self) -> int:
        """How many rows may wait."""
        return 32 * max(self.buckets) if self.max_queue_rows is None else self.max_queue_rows


class FrozenOptions(TypedDict, total=False):
    """What may be said about any model; `model` says what they mean."""

    version: str
    about: str
    deadline_seconds: float
    max_queue_rows: int | None
    canary_share: float | None


class ModelOptions(FrozenOptions, total=False):
    """What may be said about a function that is compiled."""

    parameters: object
    buckets: Sequence[int]
    axes: Mapping[str, Sequence[int]]
    x64: bool
    compiler_options: Mapping[str, object] | None
    compute_dtype: str | None
    max_relative_error: float
    examples: Mapping[str, object] | None
    program: str | None


def model(
    *, inputs: Mapping[str, Any], name: str | None = None, **options: Unpack[ModelOptions]
) -> Callable[[Callable[..., object]], Model]:
    """Declare the decorated function as a model.

    The function is called as `f(parameters, **inputs)`, or `f(**inputs)` without parameters, with
    arrays whose leading axis is the rows, and returns an array, or any tree of arrays, with the
    same leading axis. A row's result may not depend on the other rows.

    Args:
        inputs: An `Input` by name; or trees (dicts, lists, tuples) of them.
        name: The function's name by default.
        options: `parameters` (any tree of arrays, kept on the device), `version`, `buckets` (sizes
            of batches to compile for), `axes` ({name of a variable axis: sizes}),
            `deadline_seconds` (of requests that give none), `max_queue_rows`, `x64` (compute in 64
            bits; implied by 64-bit inputs), `compiler_options` (of XLA), `about` (a line for
            people), `canary_share` (of the requests that a new version gets beside the current
            one), `compute_dtype` (such as "bfloat16", to compute in; refused where it changes
            results by more than `max_relative_error`, measured with `examples`, rows by input),
            `program` (a text that changes whenever the function or a constant in it does, such as
            a commit: with the same text, a restart loads executables without tracing).
    """

    def declare(function: Callable[..., object]) -> Model:
        if not callable(function):
            raise DeclarationError(f"{function!r} is not a function.")
        called = str(getattr(function, "__name__", "model"))
        named = name or (called if called.isidentifier() else "model")  # not so a lambda
        about = options.get("about") or (function.__doc__ or "").strip().partition("\n")[0]
        described: ModelOptions = {**options, "about": about}
        return Model(function, inputs, named, **described)

    return declare


def _require_names(given: Model) -> None:
    for what, text in (("name", given.name), ("version", given.version)):
        if not isinstance(text, str) or not _NAME.fullmatch(text):
            raise DeclarationError(
                f"the {what} {text!r} has to be 1 to 64 letters, digits, '.', '_' or '-', for it "
                "becomes part of a URL."
            )
    if not isinstance(given.inputs, Mapping) or not given.inputs:
        raise DeclarationError("inputs has to be a mapping of names to serve.Input.")


def _require_sizes(given: Model) -> None:
    _require_increasing("buckets", given.buckets)
    for name, sizes in given.axes.items():
        _require_increasing(f"axes[{name!r}]", sizes)
    executables = len(given.buckets)
    for sizes in given.axes.values():
        executables *= len(sizes)
    if executables > MAX_EXECUTABLES:
        raise DeclarationError(
            f"{executables} combinations of sizes are more than {MAX_EXECUTABLES}, each of which "
            "would be compiled. Use fewer buckets."
        )
    if given.canary_share is not None and not 0 <= given.canary_share <= 1:
        raise DeclarationError("canary_share has to be between 0 and 1.")
    if given.compute_dtype not in (None, "bfloat16", "float16", "float32"):
        raise DeclarationError("compute_dtype has to be bfloat16, float16 or float32.")
    if given.deadline_seconds <= 0:
        raise DeclarationError("deadline_seconds has to be positive.")


def _require_increasing(what: str, sizes: Sequence[int]) -> None:
    whole = all(isinstance(size, int) and 1 <= size <= MAX_ROWS for size in sizes)
    if not sizes or not whole or list(sizes) != sorted(set(sizes)):
        raise DeclarationError(
            f"{what} is {tuple(sizes)!r}: give increasing whole numbers from 1 to {MAX_ROWS}."
        )
