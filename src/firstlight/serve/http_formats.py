"""The two formats of inference over HTTP: the Open Inference Protocol v2, and plain JSON.

The protocol carries tensors in JSON or, with the `binary_tensor_data` extension, as bytes after
the JSON; `Inference-Header-Content-Length` gives the length of the JSON, in both directions. Plain
JSON is for people: `{"x": [[…], …]}` in, `{"y": [[…], …]}` out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import Any, NamedTuple

import msgspec
import numpy as np

from firstlight.serve.compiled_models import Loaded
from firstlight.serve.jobs import Result
from firstlight.serve.signature import Tensor
from firstlight.serve.tensors import (
    NOTHING_ASKED,
    REQUEST_PARAMETERS,
    Array,
    InvalidRequestError,
    Rows,
    arrange,
    as_array,
    decode,
    decode_whole,
    from_bytes,
    require_datatype,
    require_known,
    reshape,
    timeout_seconds,
    whole,
    wrong_name,
)

Scalar = str | int | float | bool | None


class _TensorIn(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: dict[str, Scalar] = {}


class _TensorWanted(msgspec.Struct):
    name: str
    parameters: dict[str, Scalar] = {}


class _Request(msgspec.Struct):
    inputs: list[_TensorIn] = []
    id: str = ""
    outputs: list[_TensorWanted] = []
    parameters: dict[str, Scalar] = {}


class _TensorOut(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | None = None
    parameters: dict[str, int] = {}


class _Answer(msgspec.Struct, omit_defaults=True):
    model_name: str
    model_version: str
    outputs: list[_TensorOut]
    id: str = ""


_request = msgspec.json.Decoder(_Request)
_encode = msgspec.json.Encoder().encode
#: Types of numbers by the kind of a dtype; V is bfloat16.
_NUMBERS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float, "V": float}
_MAX_DEPTH = 8


def _decoders(number: object) -> list[Any]:
    """Decoders of a flat list of numbers, of a list of lists, and so on."""
    decoders = []
    nested: object = number
    for _ in range(_MAX_DEPTH):
        nested = GenericAlias(list, (nested,))
        decoders.append(msgspec.json.Decoder(nested))
    return decoders


_DECODERS = {kind: _decoders(number) for kind, number in _NUMBERS.items()}
_WITH_FLOATS = _decoders(int | float)


class ParsedRequest(NamedTuple):
    """The content of a request; `wanted` are outputs by index, `binary` those wanted as bytes."""

    rows: Rows
    id: str
    wanted: tuple[int, ...]
    binary: frozenset[int]
    timeout_seconds: float | None


class Protocol:
    """Reads requests for one loaded model, and writes answers."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._inputs = loaded.signature.inputs
        self._index = {tensor.name: i for i, tensor in enumerate(self._inputs)}
        self._outputs = loaded.signature.outputs
        self._output_index = {tensor.name: i for i, tensor in enumerate(self._outputs)}
        self._all = tuple(range(len(self._outputs)))

    def read(self, body: bytes | memoryview, json_bytes: int | None) -> ParsedRequest:
        """json_bytes: The length of the JSON at the start of the body; None if all of it is."""
        view = memoryview(body)
        if json_bytes is not None and not 0 <= json_bytes <= len(view):
            raise InvalidRequestError(
                f"Inference-Header-Content-Length is {json_bytes}, the body has {len(view)} bytes."
            )
        request = decode(_request, view if json_bytes is None else view[:json_bytes])
        rest = None if json_bytes is None else view[json_bytes:]
        given: list[Array | None] = [None] * len(self._inputs)
        for sent in request.inputs:
            i = self._index.get(sent.name)
            if i is None or given[i] is not None:
                raise wrong_name("input", sent.name, self._index, twice=i is not None)
            require_datatype(self._inputs[i], sent.datatype)
            size = None
            if sent.parameters:
                require_known(f"input {sent.name!r}", sent.parameters, ("binary_data_size",))
                size = sent.parameters.get("binary_data_size")
            if size is None:
                given[i] = _from_json(self._inputs[i], sent)
            else:
                given[i], rest = _from_bytes(self._inputs[i], sent, size, rest)
        if rest is not None and len(rest):
            raise InvalidRequestError(f"{len(rest)} bytes follow the last tensor.")
        wanted, binary = self._all, frozenset[int]()
        if request.outputs or request.parameters:
            wanted, binary = self._wanted(request)
        timeout = _timeout(request.parameters) if request.parameters else None
        return ParsedRequest(arrange(self.loaded, given), request.id, wanted, binary, timeout)

    def _wanted(self, request: _Request) -> tuple[tuple[int, ...], frozenset[int]]:
        require_known("the request", request.parameters, REQUEST_PARAMETERS, NOTHING_ASKED)
        everything = _flag(request.parameters, "binary_data_output", default=False)
        wanted, binary = list(self._all) if not request.outputs else [], set()
        for output in request.outputs:
            i = self._output_index.get(output.name)
            if i is None or i in wanted:
                raise wrong_name("output", output.name, self._output_index, twice=i is not None)
            wanted.append(i)
            about = f"output {output.name!r}"
            require_known(about, output.parameters, ("binary_data",), NOTHING_ASKED)
            if _flag(output.parameters, "binary_data", everything):
                binary.add(i)
        if everything and not request.outputs:
            binary.update(wanted)
        return tuple(wanted), frozenset(binary)

    def write(self, asked: ParsedRequest, result: Result) -> tuple[list[Any], int | None]:
        """The parts of the body, and the length of its JSON where bytes follow."""
        tensors: list[_TensorOut] = []
        parts: list[object] = []
        extents = asked.rows.extents
        for i in asked.wanted:
            about = self._outputs[i]
            if i in asked.binary:
                array = np.ascontiguousarray(result.array(i, extents))
                parts.append(array.reshape(-1).view(np.uint8).data)
                size = {"binary_data_size": array.nbytes}
                shape = list(array.shape)
                tensors.append(_TensorOut(about.name, about.datatype, shape, None, size))
            else:
                shape, data = _rows_of(result, i, extents)
                tensors.append(_TensorOut(about.name, about.datatype, shape, data))
        model = self.loaded.model
        head = _encode(_Answer(model.name, model.version, tensors, asked.id))
        return [head, *parts], len(head) if parts else None


def _rows_of(
    result: Result, i: int, extents: dict[str, int] | None
) -> tuple[list[int], list[object]]:
    """Shape and flat numbers, from those of the batch, which are converted once for all jobs."""
    if extents is not None:
        array = result.array(i, extents)
        return list(array.shape), array.ravel().tolist()
    output = result.batch.outputs[i]
    stride = output.size // len(output)
    flat = result.batch.flat[i][result.start * stride : result.stop * stride]
    return [result.stop - result.start, *output.shape[1:]], flat


def _from_json(tensor: Tensor, sent: _TensorIn) -> Array:
    raw = bytes(sent.data)
    start = raw[:64].translate(None, b" \t\r\n")
    depth = len(start) - len(start.lstrip(b"["))
    decoders = _DECODERS[tensor.dtype.kind]
    nested = depth > 1 and depth <= len(decoders)
    level = depth - 1 if nested else 0
    if tensor.dtype.kind in "iu":
        numbers = decode_whole(decoders[level], _WITH_FLOATS[level], raw)
    else:
        numbers = decode(decoders[level], raw)
    return reshape(tensor, as_array(tensor, numbers), sent.shape)


def _from_bytes(
    tensor: Tensor, sent: _TensorIn, size: object, rest: memoryview | None
) -> tuple[Array, memoryview]:
    if rest is None or type(size) is not int or not 0 <= size <= len(rest):
        raise InvalidRequestError(
            f"input {tensor.name!r}: binary_data_size is {size!r}, and "
            f"{0 if rest is None else len(rest)} bytes are left in the body."
        )
    return reshape(tensor, from_bytes(tensor, rest[:size]), sent.shape), rest[size:]


def _flag(parameters: dict[str, Scalar], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise InvalidRequestError(f"{name} is {str(value)[:20]!r}: give true or false.")
    return value


def _timeout(parameters: dict[str, Scalar]) -> float | None:
    """Seconds, from the parameter `timeout`, which Triton's clients send in microseconds."""
    return timeout_seconds(parameters["timeout"]) if "timeout" in parameters else None


def _by_name(inputs: Sequence[Tensor], numbers: Mapping[str, Any]) -> msgspec.json.Decoder[Any]:
    """A decoder of an object with nested lists by name; numbers: Types by kinds of dtypes."""
    fields: list[tuple[str, object, object]] = []
    for i, tensor in enumerate(inputs):
        nested: Any = numbers[tensor.dtype.kind]
        for _ in range(len(tensor.shape) + 1):
            nested = list[nested]
        fields.append((f"f{i}", nested | msgspec.UnsetType, msgspec.UNSET))
    names = {f"f{i}": tensor.name for i, tensor in enumerate(inputs)}
    struct = msgspec.defstruct("Inputs", fields, rename=names, forbid_unknown_fields=True)
    return msgspec.json.Decoder(struct)


class PlainJson:
    """Reads inputs and writes outputs of one loaded model, by name."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._names = [tensor.name for tensor in loaded.signature.outputs]
        inputs = loaded.signature.inputs
        self._decoder = _by_name(inputs, _NUMBERS)
        self._with_floats = _by_name(inputs, {**_NUMBERS, "i": int | float, "u": int | float})

    def read(self, body: Any) -> Rows:
        try:
            request = decode(self._decoder, body)
        except InvalidRequestError as error:
            request = self._with_whole_floats(body, error)
        given: list[Array | None] = []
        for i, tensor in enumerate(self.loaded.signature.inputs):
            value = getattr(request, f"f{i}")
            given.append(None if value is msgspec.UNSET else as_array(tensor, value))
        return arrange(self.loaded, given)

    def _with_whole_floats(self, body: Any, error: InvalidRequestError) -> Any:
        """The request if its integers are written as 1.0; else the error is raised."""
        try:
            request = decode(self._with_floats, body)
            for i, tensor in enumerate(self.loaded.signature.inputs):
                value = getattr(request, f"f{i}")
                if tensor.dtype.kind in "iu" and value is not msgspec.UNSET:
                    setattr(request, f"f{i}", whole(value))
        except (InvalidRequestError, OverflowError, ValueError):
            raise error from None
        return request

    def write(self, extents: dict[str, int] | None, result: Result) -> bytes:
        """extents: The variable sizes before padding."""
        if extents is not None:
            arrays = [result.array(i, extents).tolist() for i in range(len(self._names))]
            return _encode(dict(zip(self._names, arrays, strict=True)))
        start, stop = result.start, result.stop
        rows = [output[start:stop] for output in result.batch.nested]
        return _encode(dict(zip(self._names, rows, strict=True)))
