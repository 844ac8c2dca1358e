"""The tensors of a request, checked against a model's signature and padded along variable axes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from firstlight.serve.compiled_models import Arrays, Loaded
from firstlight.serve.signature import Signature, Tensor

Array = np.ndarray[Any, Any]
#: The longest timeout of a request, in seconds.
MAX_TIMEOUT = 3600.0
#: A compressed body may grow to the first, or else by the second.
_SMALL_BYTES, _MAX_GROWTH = 2**20, 100
#: Parameters of requests, and those that Triton's clients send when they ask for nothing.
REQUEST_PARAMETERS = ("timeout", "binary_data_output")
NOTHING_ASKED: Mapping[str, Collection[object]] = {
    "priority": (0,),
    "sequence_id": (0, ""),
    "sequence_start": (False,),
    "sequence_end": (False,),
    "classification": (0,),
}


class InvalidRequestError(Exception):
    """A request that cannot be answered with a result; the message is sent to the client."""

    def __init__(
        self, message: str, status: int = 400, valid: object = None, more: bytes = b""
    ) -> None:
        """more: Further header lines of the answer."""
        super().__init__(message)
        self.status, self.valid, self.more = status, valid, more


class Rows(NamedTuple):
    """Inputs in the order of a signature; `extents` are the variable sizes before padding."""

    arrays: Arrays
    rows: int
    sizes: tuple[int, ...] = ()
    extents: dict[str, int] | None = None


def decode(decoder: msgspec.json.Decoder[Any], body: Any) -> Any:
    """Decode a body; what cannot be decoded is an InvalidRequestError."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:  # including validation errors
        raise InvalidRequestError(f"the request cannot be read: {error}.") from None
    except RecursionError:
        raise InvalidRequestError("the request is nested too deeply.") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("the request is not UTF-8.") from None


def decode_whole(
    strict: msgspec.json.Decoder[Any], with_floats: msgspec.json.Decoder[Any], body: Any
) -> Any:
    """Decode integers, which JSON may write as 1.0: it has one type of numbers."""
    try:
        return decode(strict, body)
    except InvalidRequestError as error:
        try:
            return whole(decode(with_floats, body))
        except (InvalidRequestError, OverflowError, ValueError):
            raise error from None


def whole(tree: Any) -> Any:
    """A list of lists with integers for floats. Raises ValueError for 1.5."""
    if isinstance(tree, list):
        return [whole(item) for item in tree]
    number = int(tree)
    if number != tree:
        raise ValueError
    return number


def as_array(tensor: Tensor, numbers: object) -> Array:
    """Convert numbers to the model's dtype; numbers out of range are an InvalidRequestError.

    Overflow of floats raises because the server calls `np.seterr(over="raise")` once: a context
    manager per request would take as long as the conversion.
    """
    try:
        array: Array = np.array(numbers, tensor.dtype)
        if tensor.dtype.kind == "V" and np.isinf(array).any():  # bfloat16 overflows in silence
            raise OverflowError
        return array
    except (OverflowError, FloatingPointError, RuntimeWarning):
        message = f"input {tensor.name!r}: a number is out of range for {tensor.datatype}."
        raise InvalidRequestError(message) from None
    except ValueError:
        raise InvalidRequestError(f"the rows of input {tensor.name!r} differ in length.") from None


def reshape(tensor: Tensor, array: Array, shape: list[int]) -> Array:
    """Reshape an input's numbers to the shape that the request gives."""
    # NumPy has a maximum of dimensions, and of their product: at most one more than the model's
    # is looked at, which `arrange` then refuses with the valid shapes.
    is_readable = 0 < len(shape) <= len(tensor.shape) + 2 and min(shape) > 0
    if not is_readable or math.prod(shape) != array.size:
        raise InvalidRequestError(
            f"input {tensor.name!r} has {array.size} numbers, its shape is {_shown(shape)}."
        )
    return array.reshape(shape)


def _shown(shape: list[int]) -> str:
    """The beginning of a shape that a client has sent."""
    return "[" + ", ".join(str(size)[:20] for size in shape[:16]) + (", …]" if shape[16:] else "]")


def require_known(
    what: str,
    given: Mapping[str, object],
    known: Collection[str],
    harmless: Mapping[str, Collection[object]] = MappingProxyType({}),
) -> None:
    """Refuse parameters that would otherwise be ignored, except values that ask for nothing."""
    for name, value in given.items():
        asks_nothing = any(type(value) is type(no) and value == no for no in harmless.get(name, ()))
        if name not in known and not asks_nothing:
            can = ", ".join(known) if known else "none"
            raise InvalidRequestError(
                f"{what}: the parameter {name[:80]!r} is not supported. Supported: {can}."
            )


def inflated(body: Any, most: int) -> bytes:
    """The content of a gzip or zlib stream, which may have `most` bytes at most."""
    # A stream may grow a thousandfold: its sender must at least send in proportion.
    limit = min(most, max(_SMALL_BYTES, _MAX_GROWTH * len(body)))
    stream = zlib.decompressobj(wbits=47)  # gzip or zlib
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidRequestError(f"the body cannot be decompressed: {error}.") from None
    if len(content) > limit:
        raise InvalidRequestError(f"the body has more than {limit} bytes decompressed.", 413)
    if not stream.eof or stream.unused_data:
        raise InvalidRequestError("the body is not one whole compressed stream.")
    return content


def timeout_seconds(given: object) -> float:
    """The parameter `timeout`, which Triton's clients send in microseconds."""
    if type(given) is not int or not 0 < given <= MAX_TIMEOUT * 1e6:
        raise InvalidRequestError(
            f"timeout is {str(given)[:20]!r}: give a whole number of microseconds, more than 0 and "
            f"at most {MAX_TIMEOUT * 1e6:.0f}."
        )
    return given * 1e-6


def require_datatype(tensor: Tensor, datatype: str) -> None:
    if datatype != tensor.datatype:
        raise InvalidRequestError(
            f"input {tensor.name!r} is {datatype[:80]!r}: the model takes {tensor.datatype}."
        )


def from_bytes(tensor: Tensor, raw: bytes | memoryview) -> Array:
    """A flat array of an input that was sent as bytes."""
    if len(raw) % tensor.dtype.itemsize:
        raise InvalidRequestError(
            f"input {tensor.name!r}: {len(raw)} bytes are not a whole number of {tensor.datatype}."
        )
    if tensor.dtype.kind == "b":  # a byte other than 0 and 1 is undefined behaviour
        flags: Array = np.frombuffer(raw, np.uint8) != 0
        return flags
    return np.frombuffer(raw, tensor.dtype)


def wrong_name(what: str, name: str, known: Iterable[str], twice: bool) -> InvalidRequestError:
    """The error for an input or output that is unknown, or given twice."""
    if twice:
        return InvalidRequestError(f"{what} {name[:80]!r} is given twice.")
    return InvalidRequestError(
        f"the model has no {what} {name[:80]!r}: its {what}s are {', '.join(known)}."
    )


def arrange(loaded: Loaded, given: list[Array | None]) -> Rows:
    """Check inputs and fill in defaults; `given` is in the signature's order, None if missing."""
    signature = loaded.signature
    rows = next((len(array) for array in given if array is not None), 1)
    if not 1 <= rows <= loaded.model.buckets[-1]:
        raise InvalidRequestError(
            f"{rows} rows: send 1 to {loaded.model.buckets[-1]} rows in a request.",
            valid=valid_shapes(loaded),
        )
    if signature.axes:
        return _padded(loaded, given, rows)
    arrays = []
    for tensor, array in zip(signature.inputs, given, strict=True):
        if array is None:
            arrays.append(_default(tensor, rows))
        elif array.shape[1:] != tensor.shape or len(array) != rows:
            raise _wrong_shape(loaded, tensor, array)
        else:
            arrays.append(array)
    return Rows(arrays, rows)


def _default(tensor: Tensor, rows: int) -> Array:
    if tensor.default is None:
        raise InvalidRequestError(f"input {tensor.name!r} is missing.")
    return np.repeat(tensor.default[None], rows, axis=0)


def _padded(loaded: Loaded, given: list[Array | None], rows: int) -> Rows:
    signature = loaded.signature
    extents: dict[str, int] = {}
    for tensor, array in zip(signature.inputs, given, strict=True):
        if array is None:
            continue
        if array.ndim != len(tensor.shape) + 1 or len(array) != rows:
            raise _wrong_shape(loaded, tensor, array)
        for size, axis in zip(array.shape[1:], tensor.shape, strict=True):
            if size != (extents.setdefault(axis, size) if isinstance(axis, str) else axis):
                raise _wrong_shape(loaded, tensor, array)
    sizes = _sizes(loaded, signature, extents)
    named = dict(zip(signature.axes, sizes, strict=True))
    arrays = []
    for tensor, array in zip(signature.inputs, given, strict=True):
        sent = _default(tensor, rows) if array is None else array
        shape = (rows, *tensor.sized(named))
        whole = sent
        if sent.shape != shape:
            whole = np.full(shape, tensor.fill, tensor.dtype)
            whole[tuple(map(slice, sent.shape))] = sent
        arrays.append(whole)
    return Rows(arrays, rows, sizes, extents)


def _sizes(loaded: Loaded, signature: Signature, extents: dict[str, int]) -> tuple[int, ...]:
    """The smallest compiled size of every variable axis that fits the request."""
    chosen = []
    for axis, sizes in signature.axes.items():
        fitting = [size for size in sizes if size >= extents.get(axis, 1)]
        if not fitting or extents.get(axis, 1) < 1:
            raise InvalidRequestError(
                f"axis {axis!r} has {extents[axis]} entries: 1 to {sizes[-1]} are served.",
                valid=valid_shapes(loaded),
            )
        chosen.append(fitting[0])
    return tuple(chosen)


def valid_shapes(loaded: Loaded) -> dict[str, Any]:
    """The valid shapes, for the answer to a request with another one."""
    inputs = {tensor.name: ["rows", *tensor.shape] for tensor in loaded.signature.inputs}
    valid: dict[str, object] = {"inputs": inputs, "rows": [1, loaded.model.buckets[-1]]}
    if loaded.signature.axes:
        valid["axes"] = {name: [1, sizes[-1]] for name, sizes in loaded.signature.axes.items()}
    return valid


def _wrong_shape(loaded: Loaded, tensor: Tensor, array: Array) -> InvalidRequestError:
    wanted = ", ".join(map(str, ("rows", *tensor.shape)))
    return InvalidRequestError(
        f"input {tensor.name!r} has shape {list(array.shape)}: the model takes [{wanted}], with "
        "the same number of rows for every input.",
        valid=valid_shapes(loaded),
    )
