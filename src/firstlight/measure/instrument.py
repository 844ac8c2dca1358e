"""What happens in the measured process: phases, the check, warm calls, and one report.

Up to the first result this imports `sys`, `os`, `time` and builtin modules, then the framework and
the program under test. It tells the parent `done` on an inherited pipe the moment the result is
there, and sends one line of JSON afterwards. Time that belongs to no phase (loading this module and
the adapter, reading VmHWM between phases) is not hidden: the parent finds it as `unattributed`.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


class BenchmarkError(Exception):
    """The program under test breaks its contract; the text is for its author."""


def main(started_ns: int) -> None:
    """Do the job given as `sys.argv[1]`: a dict of plain values, marshalled, as hex digits."""
    import marshal  # builtin: json would load modules that jax also loads, and flatter it

    job: dict[str, Any] = marshal.loads(bytes.fromhex(sys.argv[1]))
    clock = Clock()
    if job["kind"] == "discover":
        tell(job, discover(job))
        return
    adapter = load_object(job["adapter"])()
    try:
        report = {"started_ns": started_ns, **measure(job, adapter, clock)}
    except BenchmarkError as error:
        report = {"error": str(error)}
    tell(job, report)


class Clock:
    """Phases as start and end on the system-wide monotonic clock, with VmHWM at each end."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[int, int]] = {}
        self.peaks: dict[str, bytes] = {"interpreter": peak_host_text()}

    def phase(self, name: str, action: "Callable[[], Any]") -> "Any":
        begin = time.monotonic_ns()
        value = action()
        self.spans[name] = (begin, time.monotonic_ns())
        self.peaks[name] = peak_host_text()
        return value


def measure(job: "dict[str, Any]", adapter: "Any", clock: Clock) -> "dict[str, Any]":
    builder = clock.phase("import", lambda: load_program(job, adapter))
    adapter.listen()
    untimed = job["kind"] != "timed"
    if untimed:
        adapter.explain_cache()
    if clock.phase("backend_init", adapter.initialise) is False:
        del clock.spans["backend_init"], clock.peaks["backend_init"]
    step, arguments = clock.phase("setup", lambda: set_up(job, adapter, builder))

    adapter.mark(peak_host_text)
    result = clock.phase("first_execute", lambda: adapter.sync(step(*arguments)))
    os.write(job["fd"], b"done\n")

    first_call_ns = adapter.phases_ns()
    report: dict[str, Any] = {
        "spans_ns": clock.spans,
        "first_call_ns": first_call_ns,
        "overhead_ns": adapter.overhead_ns(),
        "counts": adapter.counts(),
        "peak_device_bytes": adapter.peak_device_bytes(),
    }
    peaks = {**clock.peaks, **adapter.phase_peaks()}
    report["peak_host_bytes"] = {name: peak_bytes(text) for name, text in peaks.items()}
    report["correctness"] = check(job, adapter, result)
    if job["kind"] == "timed" and report["correctness"]["passed"]:
        report["warm"], last = warm_calls(job, adapter, step, arguments)
        again = check(job, adapter, last)
        if not again["passed"]:
            report["correctness"] = {**again, "reason": "after warm calls: " + str(again["reason"])}
        compiles, before = adapter.counts()["compiles"], report["counts"]["compiles"]
        report["counts"]["warm_compiles"] = None if compiles is None else compiles - before
    report["cache"] = adapter.cache_counts()
    if untimed:
        report["facts"] = describe(adapter, arguments)
        report["compiler_bytes"] = adapter.compiler_bytes(step, arguments)
    return report


def load_program(job: "dict[str, Any]", adapter: "Any") -> "Any":
    adapter.load()
    return load_user_function(job) if job["file"] else load_object(job["program"])


def set_up(job: "dict[str, Any]", adapter: "Any", builder: "Any") -> "tuple[Any, Any]":
    if job["file"]:
        built = builder(**job["parameters"])
    else:
        built = builder(adapter.compile, job["seed"], **job["parameters"])
    step, arguments = built if isinstance(built, tuple) else (built, ())
    if not callable(step):
        raise BenchmarkError(
            f"{job['program']} returned {type(step).__name__}, not a step. Return a callable, or "
            "(callable, arguments)."
        )
    adapter.sync(arguments)
    return step, arguments


def warm_calls(
    job: "dict[str, Any]", adapter: "Any", step: "Any", arguments: "Any"
) -> "tuple[dict[str, Any], Any]":
    """Every call in order, synchronised; then batches of calls with one synchronisation each."""
    clock, sync = time.monotonic_ns, adapter.sync
    calls_ns: list[int] = []
    result = None
    most, least = job["warm_calls"], min(job["warm_calls_least"], job["warm_calls"])
    deadline = clock() + int(job["warm_seconds"] * 1e9)
    # Slow calls get ten times as long for the least number of them, and never fewer than three.
    patience = clock() + int(10 * job["warm_seconds"] * 1e9)
    while (
        len(calls_ns) < min(3, most)
        or (len(calls_ns) < least and clock() < patience)
        or (len(calls_ns) < most and clock() < deadline)
    ):
        begin = clock()
        result = sync(step(*arguments))
        calls_ns.append(clock() - begin)

    mean_ns = sum(calls_ns) / len(calls_ns)
    batch_calls = max(1, min(1000, int(job["batch_seconds"] * 1e9 / max(1, mean_ns))))
    batches_ns = []
    # A program whose calls turned slow is not waited for: half the batches say so as well.
    deadline = clock() + int(4 * job["batches"] * max(job["batch_seconds"] * 1e9, mean_ns))
    for number in range(job["batches"]):
        if number >= job["batches"] / 2 and clock() > deadline:
            break
        begin = clock()
        for _ in range(batch_calls):
            result = step(*arguments)
        result = sync(result)
        batches_ns.append(clock() - begin)
    return {"calls_ns": calls_ns, "batch_calls": batch_calls, "batches_ns": batches_ns}, result


def check(job: "dict[str, Any]", adapter: "Any", result: "Any") -> "dict[str, Any]":
    """Compare with the float64 reference: computed by the check process, read by the others."""
    outputs = [adapter.to_numpy(leaf) for leaf in leaves(result)]
    if not outputs:
        raise BenchmarkError(
            f"the step of {job['program']} returned nothing. Return the arrays that it computes: "
            "without a result there is nothing to wait for and nothing to check."
        )
    import numpy

    for number, output in enumerate(outputs):
        if not numpy.issubdtype(output.dtype, numpy.number) and output.dtype != bool:
            return {"passed": False, "error": None, "reason": f"output {number} is no number"}
        if not numpy.all(numpy.isfinite(output)):
            return {"passed": False, "error": None, "reason": f"output {number} is not finite"}
    path = job["reference_path"]
    if not job["reference"]:
        return {"passed": True, "error": None, "reason": "no reference given"}
    if job["kind"] == "check":
        expected = reference_outputs(job)
        numpy.savez(path, *expected)
    with numpy.load(path) as stored:
        expected = [stored[name] for name in stored.files]
    return compare(outputs, expected, job["tolerance"])


def reference_outputs(job: "dict[str, Any]") -> "list[Any]":
    import numpy

    if job["file"]:
        function = load_user_function(job).__firstlight__["reference"]
        value = function(**job["parameters"])
    else:
        value = load_object(job["reference"])(job["seed"], **job["parameters"])
    return [numpy.asarray(leaf, dtype=numpy.float64) for leaf in leaves(value)]


def compare(outputs: "list[Any]", expected: "list[Any]", tolerance: float) -> "dict[str, Any]":
    """Largest |output - reference| over largest |reference|, the worst of the outputs."""
    import numpy

    shapes, wanted = [o.shape for o in outputs], [e.shape for e in expected]
    if shapes != wanted:
        what = f"output shapes {shapes} differ from the reference's {wanted}"
        return {"passed": False, "error": None, "reason": what}
    errors = []
    for output, truth in zip(outputs, expected):
        scale = float(numpy.max(numpy.abs(truth), initial=0.0)) or 1.0
        difference = numpy.abs(output.astype(numpy.float64) - truth)
        errors.append(float(numpy.max(difference, initial=0.0)) / scale)
    worst = max(errors)
    passed = worst <= tolerance
    reason = None if passed else f"relative error {worst:.3g} exceeds the tolerance {tolerance:.3g}"
    return {"passed": passed, "error": worst, "reason": reason}


def leaves(value: "Any") -> "Iterator[Any]":
    """The arrays and numbers in nested tuples, lists and dicts, in order."""
    if value is None:
        return
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def describe(adapter: "Any", arguments: "Any") -> "dict[str, Any]":
    data = [adapter.describe(leaf) for leaf in leaves(arguments)]
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "data": [d for d in data if d is not None],
        "threads": {"cpus": len(affinity(0)) if affinity else os.cpu_count(), **adapter.threads()},
        "precision": adapter.precision(),
        "sync": adapter.sync_policy,
    }


def load_object(name: str) -> "Any":
    module, _, attribute = name.partition(":")
    __import__(module)
    return getattr(sys.modules[module], attribute)


def load_user_module(path: str) -> "Any":
    """Import a user's file under its own name, from its own folder, as `python FILE` would."""
    folder, name = os.path.split(os.path.abspath(path))
    name = name.removesuffix(".py")
    sys.path.insert(0, folder)
    __import__(name)
    module = sys.modules[name]
    found = getattr(module, "__file__", None)
    if found is None or os.path.realpath(found) != os.path.realpath(path):
        raise BenchmarkError(
            f"{path}: Python imports another module as {name!r} ({found}). Rename the file."
        )
    return module


def load_user_function(job: "dict[str, Any]") -> "Any":
    return getattr(load_user_module(job["file"]), job["program"])


def discover(job: "dict[str, Any]") -> "dict[str, Any]":
    """The marked functions of a user's file, and the framework that the file itself imports."""
    module = load_user_module(job["file"])
    found = []
    for name, value in vars(module).items():
        options = getattr(value, "__firstlight__", None)
        if isinstance(options, dict) and callable(value):
            plain = {k: v for k, v in options.items() if k != "reference"}
            found.append(
                {"function": name, "reference": callable(options.get("reference")), **plain}
            )
    frameworks = [name for name in ("jax", "torch", "numpy") if name in sys.modules]
    return {"benchmarks": found, "frameworks": frameworks}


def peak_host_text() -> bytes:
    """/proc/self/status as it is: parsing waits until nothing is measured any more."""
    try:
        descriptor = os.open("/proc/self/status", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def peak_bytes(status: bytes) -> "int | None":
    for line in status.split(b"\n"):
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def tell(job: "dict[str, Any]", report: "dict[str, Any]") -> None:
    # Imported after the last timestamp: json would pre-warm modules that jax also loads.
    import json

    line = memoryview(json.dumps(report, default=str).encode() + b"\n")
    while line:
        line = line[os.write(job["fd"], line) :]
