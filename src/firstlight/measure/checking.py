"""Compares results with their float64 reference, after the last timestamp."""

from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from firstlight.measure.program import (
    BenchmarkError,
    load_object,
    load_user_function,
    set_up,
    user_parameters,
)

if TYPE_CHECKING:
    from firstlight.measure.adapters import Adapter
    from firstlight.measure.program import Job

Array = NDArray[Any]

#: Larger inputs are not created a second time for hashing: the check must not run out of memory.
_MAX_HASHED_BYTES = 1 << 30


def check(job: "Job", adapter: "Adapter", result: object) -> "Job":
    """Compare a result with the reference, which the check process computes and the others read."""
    outputs = [adapter.to_numpy(leaf) for leaf in adapter.leaves(result)]
    if not outputs:
        raise BenchmarkError(
            f"the step of {job['program']} returned nothing. Return the arrays that it computes: "
            "without a result there is nothing to wait for and nothing to check."
        )
    for number, output in enumerate(outputs):
        if not numpy.issubdtype(output.dtype, numpy.number) and output.dtype != bool:
            raise BenchmarkError(
                f"output {number} of {job['program']} is of type {output.dtype}, not a number."
            )
        if not numpy.all(numpy.isfinite(output)):
            return {"passed": False, "error": None, "reason": f"output {number} is not finite"}
    if not job["reference"]:
        return {"passed": True, "error": None, "reason": "no reference given"}
    path = job["reference_path"]
    if job["kind"] == "check":
        numpy.savez(path, *reference_outputs(job, adapter))
    with numpy.load(path) as stored:
        expected = [stored[name] for name in stored.files]
    return compare(outputs, expected, job["tolerance"])


def reference_outputs(job: "Job", adapter: "Adapter") -> list[Array]:
    """The reference in double precision. Raises if it is not finite."""
    if job["file"]:
        value = load_user_function(job).__firstlight__["reference"](**user_parameters(job))
    else:
        value = load_object(job["reference"])(job["seed"], **job["parameters"])
    outputs = [widened(adapter.to_numpy(leaf)) for leaf in adapter.leaves(value)]
    for number, output in enumerate(outputs):
        if not numpy.all(numpy.isfinite(output)):
            raise BenchmarkError(f"output {number} of the reference is not finite.")
    return outputs


def widened(array: Array) -> Array:
    """The array as float64, or as complex128 if it is complex."""
    double = numpy.complex128 if numpy.iscomplexobj(array) else numpy.float64
    return numpy.asarray(array, dtype=double)


def compare(outputs: list[Array], expected: list[Array], tolerance: float) -> "Job":
    """Compare max |output - reference| / max |reference|, the worst output's, with `tolerance`."""
    shapes, wanted = [o.shape for o in outputs], [e.shape for e in expected]
    if shapes != wanted:
        what = f"output shapes {shapes} differ from the reference's {wanted}"
        return {"passed": False, "error": None, "reason": what}
    worst, where = 0.0, ""
    for number, (output, truth) in enumerate(zip(outputs, expected, strict=True)):
        if not truth.size:
            continue
        scale = float(numpy.max(numpy.abs(truth))) or 1.0
        difference = numpy.abs(widened(output) - truth)
        at = numpy.unravel_index(numpy.argmax(difference), truth.shape)
        if difference[at] / scale > worst:
            worst = float(difference[at]) / scale
            index = ", ".join(map(str, at))
            values = f"{output[at]:.6g}, the reference {truth[at]:.6g}"
            where = f"output {number} at [{index}] is {values}"
    if worst <= tolerance:
        return {"passed": True, "error": worst, "reason": None}
    reason = f"{where}: relative error {worst:.3g} exceeds the tolerance {tolerance:.3g}"
    return {"passed": False, "error": worst, "reason": reason}


def data_hashes(job: "Job", adapter: "Adapter", builder: object, size: int) -> "Job":
    """SHA-256 of every input array, in the order of the protocol's `data`; else the reason why not.

    The inputs are created again, because the step may have modified or donated its arguments.
    `size` is their total in bytes.
    """
    if size > _MAX_HASHED_BYTES:
        return {"data_sha256": None, "data_sha256_unknown": f"{size} bytes: too large to hash"}
    import hashlib

    try:
        leaves = adapter.leaves(set_up(job, adapter, builder)[1])
        arrays = [adapter.to_numpy(x) for x in leaves if adapter.describe(x) is not None]
        found = [hashlib.sha256(numpy.ascontiguousarray(a).tobytes()).hexdigest() for a in arrays]
    except Exception as error:  # a program that can be built only once, an unusual kind of array
        why = f"the data could not be created again: {type(error).__name__}: {error}"
        return {"data_sha256": None, "data_sha256_unknown": why[:300]}
    return {"data_sha256": found}
