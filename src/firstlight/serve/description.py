"""Descriptions of the server and its models, as the protocol has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
        "buckets": [
            {"rows": b.rows, "sizes": list(b.sizes), "seconds": b.seconds,
             "load_seconds": b.load_seconds, "from_cache": b.from_cache}
            for b in served.loaded.buckets
        ],
    }  # fmt: skip


def readiness(models: Models, is_ready: bool) -> Plain:
    """What was prepared for each model before the server was ready."""
    return {
        "ready": is_ready,
        "models": [
            {
                "name": served.model.name,
                "version": served.model.version,
                "executables": len(served.loaded.buckets),
                "shapes": valid_shapes(served.loaded),
                "preparation_seconds": sum(b.load_seconds for b in served.loaded.buckets),
                "rehearsal_seconds": models.rehearsed.get(
                    (served.model.name, served.model.version)
                ),
            }
            for served in models.all_served()
        ],
    }


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
