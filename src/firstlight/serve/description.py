"""Descriptions of the server and its models: the protocol's metadata, and an OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from firstlight import __version__
from firstlight.serve.models import Models, Served
from firstlight.serve.signature import Tensor
from firstlight.serve.tensors import valid_shapes

Plain = dict[str, Any]


def server() -> Plain:
    return {"name": "firstlight", "version": __version__, "extensions": ["binary_tensor_data"]}


def metadata(served: Served, models: Models) -> Plain:
    """The protocol's metadata of a model."""
    signature, name = served.loaded.signature, served.model.name
    return {
        "name": name,
        "versions": [s.model.version for _, s in models.names[name].versions()],
        "platform": "jax",
        "inputs": [_tensor(tensor) for tensor in signature.inputs],
        "outputs": [_tensor(tensor) for tensor in signature.outputs],
    }


def configuration(served: Served) -> Plain:
    """Limits, settings and buckets of a model, beyond the protocol's metadata."""
    model = served.model
    return {
        "name": model.name,
        "version": model.version,
        "platform": "jax",
        "backend": "firstlight",
        "max_batch_size": model.buckets[-1],
        "input": [_configured(tensor) for tensor in served.loaded.signature.inputs],
        "output": [_configured(tensor) for tensor in served.loaded.signature.outputs],
        "valid": valid_shapes(served.loaded),
        "deadline_seconds": model.deadline_seconds,
        "max_queue_rows": model.queue_rows,
        "memory_bytes": served.loaded.memory_bytes,
        "compute_dtype": model.compute_dtype,
        "relative_error": served.loaded.relative_error,
        "buckets": [
            {"rows": b.rows, "sizes": list(b.sizes), "seconds": b.seconds,
             "load_seconds": b.load_seconds, "from_cache": b.from_cache}
            for b in served.loaded.buckets
        ],
    }  # fmt: skip


def statistics(served: Iterable[Served]) -> Plain:
    """What was computed so far, in the form of Triton's statistics."""
    return {"model_stats": [_statistics(one) for one in served]}


def _statistics(served: Served) -> Plain:
    lane = next(iter(served.lanes.values()))  # all lanes of a model share its series
    answered = sum(served.warm.counts) + sum(served.cold.counts)
    success = _duration(answered, served.warm.total + served.cold.total)
    queue = _duration(sum(lane.queue_duration.counts), lane.queue_duration.total)
    batches = sum(lane.execute_duration.counts)
    return {
        "name": served.model.name,
        "version": served.model.version,
        "inference_count": int(lane.rows_total.value),
        "execution_count": batches,
        "inference_stats": {
            "success": success,
            "fail": _duration(served.failures, 0.0),
            "queue": queue,
            "compute_infer": _duration(batches, lane.execute_duration.total),
        },
    }


def _duration(count: int, seconds: float) -> Plain:
    return {"count": count, "ns": int(seconds * 1e9)}


def _configured(tensor: Tensor) -> Plain:
    return {
        "name": tensor.name,
        "data_type": f"TYPE_{tensor.datatype}",
        "dims": tensor.wire_shape[1:],
    }


def _tensor(tensor: Tensor) -> Plain:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.wire_shape}


def openapi(served: Iterable[Served], with_token: bool) -> Plain:
    """An OpenAPI 3.1 document of plain JSON and of the inference protocol."""
    paths: Plain = {
        f"/v2/health/{name}": {"get": _operation(f"Is the server {name}?", {}, ("200", "503"))}
        for name in ("live", "ready")
    }
    for one in served:
        paths |= _paths(one)
    document: Plain = {
        "openapi": "3.1.0",
        "info": {"title": "Firstlight", "version": __version__},
        "paths": paths,
    }
    if with_token:
        scheme = {"type": "http", "scheme": "bearer"}
        document |= {"components": {"securitySchemes": {"token": scheme}}}
        document |= {"security": [{"token": []}]}
    return document


def _paths(served: Served) -> Plain:
    name, signature = served.model.name, served.loaded.signature
    rows = served.model.buckets[-1]
    sent = {tensor.name: _schema(tensor, rows) for tensor in signature.inputs}
    needed = [tensor.name for tensor in signature.inputs if tensor.default is None]
    inputs = {"type": "object", "properties": sent, "required": needed,
              "additionalProperties": False}  # fmt: skip
    outputs = {
        "type": "object",
        "properties": {tensor.name: _schema(tensor, rows) for tensor in signature.outputs},
    }
    title = served.model.about or f"Rows for {name}."
    refused = ("400", "401", "413", "415", "429", "503", "504")
    plain = _operation(title, outputs, ("200", *refused), inputs)
    tensors = {"type": "array", "items": _tensor_schema(signature.inputs)}
    request = {"type": "object", "properties": {"id": {"type": "string"}, "inputs": tensors}}
    protocol = _operation(title, {"type": "object"}, ("200", *refused), request)
    about = _operation(f"Inputs and outputs of {name}.", {"type": "object"}, ("200", "401", "404"))
    return {
        f"/models/{name}": {"post": plain},
        f"/v2/models/{name}/infer": {"post": protocol},
        f"/v2/models/{name}": {"get": about},
    }


def _tensor_schema(tensors: Iterable[Tensor]) -> Plain:
    """The schema of one input of the protocol, its numbers in JSON or, with `parameters`, bytes."""
    named = {"enum": [tensor.name for tensor in tensors]}
    shape = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1}
    typed = {"enum": sorted({tensor.datatype for tensor in tensors})}
    properties = {"name": named, "shape": shape, "datatype": typed, "data": {"type": "array"},
                  "parameters": {"type": "object"}}  # fmt: skip
    required = ["name", "shape", "datatype"]
    return {"type": "object", "properties": properties, "required": required}


def _operation(
    summary: str, answer: Plain, codes: Iterable[str], body: Plain | None = None
) -> Plain:
    error = {"type": "object", "properties": {"error": {"type": "string"}}}
    responses: dict[str, Plain] = {}
    for code in codes:
        responses[code] = {"description": "OK" if code == "200" else "No result."}
        if schema := answer if code == "200" else error:
            responses[code] |= {"content": {"application/json": {"schema": schema}}}
    operation: Plain = {"summary": summary, "responses": responses}
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _schema(tensor: Tensor, rows: int) -> Plain:
    kinds = {"b": "boolean", "i": "integer", "u": "integer"}
    schema: Plain = {"type": kinds.get(tensor.dtype.kind, "number")}
    if tensor.dtype.kind in "iu":
        limits = np.iinfo(tensor.dtype)
        schema |= {"minimum": int(limits.min), "maximum": int(limits.max)}
    for size in reversed(tensor.shape):
        schema = {"type": "array", "items": schema, "minItems": 1}
        if not isinstance(size, str):
            schema |= {"minItems": size, "maxItems": size}
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": rows}
