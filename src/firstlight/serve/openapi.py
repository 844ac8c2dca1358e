"""An OpenAPI 3.1 document of plain JSON and of the inference protocol.

What it allows is accepted, and what it forbids is refused: all tensors of a request have the same
number of rows and the same variable sizes, so the combinations are listed, where they are few.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from firstlight import __version__
from firstlight.serve.models import Served
from firstlight.serve.signature import Tensor
from firstlight.serve.tensors import NOTHING_ASKED

Plain = dict[str, Any]
#: With more combinations of rows and sizes, a request is described tensor by tensor.
_MAX_LISTED = 64
_REFUSED = ("400", "401", "413", "415", "429", "500", "503", "504")
_OBJECT: Plain = {"type": "object"}
_TENSORS: Plain = {"application/octet-stream": {}}  # with `binary_data_output`


class _Sizes(NamedTuple):
    """Number of rows and sizes of variable axes: each from, to."""

    rows: tuple[int, int]
    extents: Mapping[str, tuple[int, int]]

    def of(self, tensor: Tensor) -> list[tuple[int, int]]:
        inner = (self.extents[n] if isinstance(n, str) else (n, n) for n in tensor.shape)
        return [self.rows, *inner]


def document(served: Iterable[Served], with_token: bool) -> Plain:
    """The document of a server of these models."""
    paths: Plain = {
        f"/v2/health/{name}": {"get": _operation(f"Is the server {name}?", ("200", "503"), {})}
        for name in ("live", "ready")
    }
    for path, about in (
        ("/v2", "The server."),
        ("/v2/models", "All models."),
        ("/v2/models/stats", "What was computed so far."),
    ):
        paths[path] = {"get": _operation(about, ("200", "401"), _OBJECT)}
    paths["/v2/models"]["get"]["responses"]["200"] = _response(_list_of(_OBJECT))
    ready: Plain = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
    index = _operation("Models and their states.", ("200", "400", "401"), _list_of(_OBJECT), ready)
    index["requestBody"]["required"] = False
    paths["/v2/repository/index"] = {"post": index}
    found = list(served)
    for one in found:
        paths |= _paths(one)
    made: Plain = {
        "openapi": "3.1.0",
        "info": {"title": "Firstlight", "version": __version__},
        "paths": paths,
    }
    if with_token:
        for one in found:
            name = one.model.name
            abort = _operation(f"End the canary of {name}.", ("200", "401", "404", "409"), _OBJECT)
            paths[f"/v2/models/{name}/canary/abort"] = {"post": abort}
        scheme = {"type": "http", "scheme": "bearer"}
        made |= {"components": {"securitySchemes": {"token": scheme}}}
        made |= {"security": [{"token": []}]}
    return made


def _paths(served: Served) -> Plain:
    name, title = served.model.name, served.model.about or f"Rows for {served.model.name}."
    outputs = served.loaded.signature.outputs
    answer = _object({tensor.name: _nested(tensor, _any_sizes(served), True) for tensor in outputs})
    plain = _operation(title, ("200", *_REFUSED), answer, _plain(served))
    infer = _operation(title, ("200", *_REFUSED), _OBJECT, _protocol(served))
    infer["responses"]["200"]["content"] |= _TENSORS
    found: Plain = {f"/models/{name}": {"post": plain}, f"/v2/models/{name}/infer": {"post": infer}}
    for path, about in (
        ("", "Inputs and outputs"), ("/config", "Buckets and their costs"),
        ("/stats", "What was computed so far"),
    ):  # fmt: skip
        about_it = _operation(f"{about}: {name}.", ("200", "401", "404"), _OBJECT)
        found[f"/v2/models/{name}{path}"] = {"get": about_it}
    ready = _operation(f"Is {name} ready?", ("200", "401", "404", "503"), {})
    return found | {f"/v2/models/{name}/ready": {"get": ready}}


# --- requests -------------------------------------------------------------------------------------


def _any_sizes(served: Served) -> _Sizes:
    axes = {name: (1, sizes[-1]) for name, sizes in served.loaded.signature.axes.items()}
    return _Sizes((1, served.model.buckets[-1]), axes)


def _listed(served: Served) -> list[_Sizes]:
    """All combinations of rows and sizes, or their ranges if there are too many."""
    whole = _any_sizes(served)
    ranges = [whole.rows, *whole.extents.values()]
    if math.prod(most for _, most in ranges) > _MAX_LISTED:
        return [whole]
    return [
        _Sizes((rows, rows), {n: (s, s) for n, s in zip(whole.extents, sizes, strict=True)})
        for rows, *sizes in itertools.product(*(range(1, most + 1) for _, most in ranges))
    ]


def _plain(served: Served) -> Plain:
    """The body of plain JSON."""
    signature = served.loaded.signature
    needed = [tensor.name for tensor in signature.inputs if tensor.default is None]
    is_simple = len(signature.inputs) == 1 and not signature.axes
    alternatives = [_any_sizes(served)] if is_simple else _listed(served)
    return _any_of(
        {
            **_object({tensor.name: _nested(tensor, sizes) for tensor in signature.inputs}),
            "required": needed,
            "additionalProperties": False,
        }
        for sizes in alternatives
    )


def _protocol(served: Served) -> Plain:
    """The body of the inference protocol, its tensors in JSON."""
    signature = served.loaded.signature
    needed = [tensor for tensor in signature.inputs if tensor.default is None]
    groups = [needed] if len(needed) == len(signature.inputs) else [needed, signature.inputs]
    inputs = _any_of(
        {
            "type": "array",
            "prefixItems": [_tensor(tensor, sizes) for tensor in group],
            "minItems": len(group),
            "maxItems": len(group),
        }
        for sizes in _listed(served)
        for group in groups
    )
    parameters = _closed({"binary_data_output": {"type": "boolean"}})
    # A request that is valid may be answered 504 only because of it, so it is said in words.
    parameters["description"] = "Also timeout, in microseconds, after which the answer is 504."
    parameters["properties"] |= {
        name: {"enum": list(values)} for name, values in _nothing("classification")
    }
    properties = {
        "id": {"type": "string"},
        "inputs": inputs,
        "outputs": _wanted(signature.outputs),
        "parameters": parameters,
    }
    return _object(properties) | {"required": ["inputs"] if needed else []}


def _nothing(*but: str) -> Iterator[tuple[str, Iterable[object]]]:
    return ((name, values) for name, values in NOTHING_ASKED.items() if name not in but)


def _tensor(tensor: Tensor, sizes: _Sizes) -> Plain:
    """One input of the protocol."""
    exact = [low for low, high in sizes.of(tensor) if low == high]
    is_listed = len(exact) == len(tensor.shape) + 1
    shape: Plain = {"type": "array", "items": {"type": "integer", "minimum": 1}}
    data: Plain = {"type": "array"}
    if is_listed:
        shape = {"const": exact}
        count = math.prod(exact)
        data = _array(_number(tensor), (count, count))
        if tensor.shape:
            data = {"anyOf": [data, _nested(tensor, sizes)]}
    properties = {
        "name": {"const": tensor.name},
        "shape": shape,
        "datatype": {"const": tensor.datatype},
        "data": data,
        "parameters": _closed({}),
    }
    return _object(properties) | {"required": ["name", "shape", "datatype", "data"]}


def _wanted(outputs: Iterable[Tensor]) -> Plain:
    """The outputs that a request asks for: each at most once."""
    names = [tensor.name for tensor in outputs]
    bare = {"enum": [{"name": name} for name in names]}
    as_bytes = _closed({"binary_data": {"type": "boolean"}, "classification": {"enum": [0]}})
    with_parameters = _object({"name": {"enum": names}, "parameters": as_bytes})
    with_parameters["required"] = ["name"]
    listed = {"type": "array", "items": bare, "uniqueItems": True}
    return {"anyOf": [listed, {"type": "array", "items": with_parameters, "maxItems": 1}]}


# --- numbers --------------------------------------------------------------------------------------


def _nested(tensor: Tensor, sizes: _Sizes, is_output: bool = False) -> Plain:
    """Lists of lists, as deep as a tensor has axes."""
    schema = _number(tensor, is_output)
    for size in reversed(sizes.of(tensor)):
        schema = _array(schema, size)
    return schema


def _number(tensor: Tensor, is_output: bool = False) -> Plain:
    """A number of a tensor; in an output, NaN and infinity are null."""
    kind = tensor.dtype.kind
    if kind == "b":
        return {"type": "boolean"}
    if kind in "iu":
        limits = np.iinfo(tensor.dtype)
        return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    if is_output:
        return {"type": ["number", "null"]}
    overflow = _overflow(tensor.dtype)
    if overflow == math.inf:  # JSON has no larger numbers that can be read
        return {"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max}
    return {"type": "number", "exclusiveMinimum": -overflow, "exclusiveMaximum": overflow}


@cache
def _overflow(dtype: np.dtype[Any]) -> float:
    """The least number that a dtype rounds to infinity, by bisection of what NumPy does."""
    if dtype == np.float64:
        return math.inf
    low, high = 0.0, sys.float_info.max
    with np.errstate(over="ignore"):
        while (middle := low + (high - low) / 2) not in (low, high):
            low, high = (low, middle) if np.isinf(np.array(middle, dtype)) else (middle, high)
    return high


def _array(items: Plain, size: tuple[int, int]) -> Plain:
    return {"type": "array", "items": items, "minItems": size[0], "maxItems": size[1]}


# --- JSON Schema ----------------------------------------------------------------------------------


def _any_of(schemas: Iterable[Plain]) -> Plain:
    found = list(schemas)
    return found[0] if len(found) == 1 else {"anyOf": found}


def _object(properties: Plain) -> Plain:
    return {"type": "object", "properties": properties}


def _closed(properties: Plain) -> Plain:
    return _object(properties) | {"additionalProperties": False}


def _list_of(items: Plain) -> Plain:
    return {"type": "array", "items": items}


def _operation(
    summary: str, codes: Iterable[str], answer: Plain, body: Plain | None = None
) -> Plain:
    error = _object({"error": {"type": "string"}})
    responses = {code: _response(answer if code == "200" else error, code) for code in codes}
    if not answer:  # health: the status is the answer
        responses = {code: {"description": _described(code)} for code in codes}
    operation: Plain = {"summary": summary, "responses": responses}
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _response(schema: Plain, code: str = "200") -> Plain:
    return {
        "description": _described(code),
        "content": {"application/json": {"schema": schema}},
    }


def _described(code: str) -> str:
    return "OK" if code == "200" else "No result."
