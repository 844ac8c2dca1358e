"""What happens in the measured process: phases, the check, warm calls, and one report.

Up to the first result this imports `sys`, `os`, `time` and builtin modules, then the framework and
the program under test. It tells the parent `done` on an inherited pipe the moment the result is
there, and sends one line of JSON afterwards. Time that belongs to no phase (loading this module and
the adapter, reading VmHWM between phases) is not hidden: the parent finds it as `unattributed`.
"""

import os
import sys
import time

from firstlight.measure import program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from firstlight.measure.adapters import Adapter
    from firstlight.measure.program import Job

    T = TypeVar("T")


def main(started_ns: int) -> None:
    """Do the job given as `sys.argv[1]`: a dict of plain values, marshalled, as hex digits."""
    import marshal  # builtin: json would load modules that jax also loads, and flatter it

    job: Job = marshal.loads(bytes.fromhex(sys.argv[1]))
    try:
        if job["kind"] == "discover":
            report = program.discover(job["file"])
        else:
            adapter = program.load_object(job["adapter"])()
            report = {"started_ns": started_ns, **measure(job, adapter, started_ns)}
    except program.BenchmarkError as error:
        report = {"error": str(error)}
    except Exception as error:
        import traceback

        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".strip()
        tell(job, {"exception": text[:2000], "out_of_memory": is_memory(error, text)})
        sys.exit(1)
    tell(job, report)


def is_memory(error: BaseException, text: str) -> bool:
    # Frameworks have their own types for it.
    words = ("RESOURCE_EXHAUSTED", "OutOfMemory", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(word in text for word in words)


class Clock:
    """Phases as start and end on the system-wide monotonic clock, with VmHWM at each end."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[int, int]] = {}
        self.peaks: dict[str, bytes] = {"interpreter": peak_host_text()}

    def phase(self, name: str, action: "Callable[[], T]") -> "T":
        begin = time.monotonic_ns()
        value = action()
        self.spans[name] = (begin, time.monotonic_ns())
        self.peaks[name] = peak_host_text()
        return value


def measure(job: "Job", adapter: "Adapter", started_ns: int) -> "Job":
    clock = Clock()
    builder = clock.phase("import", lambda: program.load(job, adapter))
    adapter.listen()
    untimed = job["kind"] != "timed"
    if untimed:
        adapter.explain_cache()
    if job["kind"] == "explain":
        adapter.name_functions()
    if clock.phase("backend_init", adapter.initialise) is False:
        del clock.spans["backend_init"], clock.peaks["backend_init"]
    step, arguments = clock.phase("setup", lambda: program.set_up(job, adapter, builder))

    adapter.mark(peak_host_text)
    result = clock.phase("first_execute", lambda: adapter.sync(step(*arguments)))
    os.write(job["fd"], b"done\n")

    report: Job = {
        "spans_ns": clock.spans,
        "first_call_ns": adapter.phases_ns(),
        "overhead_ns": adapter.overhead_ns(),
        "counts": adapter.counts(),
        "peak_device_bytes": adapter.peak_device_bytes(),
    }
    if job["kind"] == "explain":  # for `gate --explain`: nothing but what the compiler was asked
        return {**report, "functions": adapter.functions()}
    program.require_right_adapter(job, adapter, result)
    peaks = {**clock.peaks, **adapter.phase_peaks()}
    report["peak_host_bytes"] = {name: peak_bytes(text) for name, text in peaks.items()}

    from firstlight.measure.checking import check, data_hashes

    report["correctness"] = check(job, adapter, result)
    if job["kind"] == "timed" and report["correctness"]["passed"]:
        adapter.settle()
        report["warm"], last = warm_calls(job, adapter, step, arguments, started_ns)
        again = check(job, adapter, last)
        if not again["passed"]:
            report["correctness"] = {**again, "reason": f"after warm calls: {again['reason']}"}
        compiles, before = adapter.counts()["compiles"], report["counts"]["compiles"]
        report["counts"]["warm_compiles"] = None if compiles is None else compiles - before
        report["counts"] |= adapter.tier_counts()
    report["cache"] = adapter.cache_counts()
    if job["kind"] == "prime":
        adapter.leave_behind()
    if untimed:
        report["facts"] = describe(adapter, arguments)
        if job.get("list_modules"):
            report["facts"]["modules"] = program.modules()
        report["compiler_bytes"] = adapter.compiler_bytes(step, arguments)
        equations = adapter.equations(step, arguments)
        if equations is not None:
            report["counts"]["equations"] = equations
    if job["kind"] == "check":
        size = sum(item["bytes"] for item in report["facts"]["data"])
        report["facts"] |= data_hashes(job, adapter, builder, size)
    return report


def warm_calls(
    job: "Job",
    adapter: "Adapter",
    step: "Callable[..., object]",
    arguments: "tuple[object, ...]",
    started_ns: int,
) -> "tuple[Job, object]":
    """Every call in order, synchronised; then batches of calls with one synchronisation each.

    In a gate both sides take turns, window by window: waiting is not part of any time here.
    """
    from firstlight.measure.turns import Turns

    clock, sync, turns = time.monotonic_ns, adapter.sync, Turns(job)
    # Whatever the settings ask for, half of the time limit is not exceeded.
    left_ns = max(0, started_ns + int(job["timeout_seconds"] * 1e9) - clock()) // 2
    most, least = job["warm_calls"], min(job["warm_calls_least"], job["warm_calls"])
    meant_ns = int(job["warm_seconds"] * 1e9)
    # Slow calls get ten times as long for the least number of them.
    patience_ns = min(left_ns, 10 * meant_ns)
    calls_ns: list[int] = []
    spent_ns, result = 0, None
    for window in range(1, turns.windows + 1):
        turns.begin()
        before, share = len(calls_ns), window / turns.windows
        opened = clock()
        while (
            len(calls_ns) == before
            or (len(calls_ns) < least * share and spent_ns + clock() - opened < patience_ns)
            or (len(calls_ns) < most * share and clock() - opened < meant_ns / turns.windows)
        ):
            begin = clock()
            result = sync(step(*arguments))
            calls_ns.append(clock() - begin)
        spent_ns += clock() - opened
        turns.end(len(calls_ns) - before)
        if spent_ns >= patience_ns:
            break

    mean_ns = sum(calls_ns) / len(calls_ns)
    batch_calls = max(1, min(1000, int(job["batch_seconds"] * 1e9 / max(1, mean_ns))))
    batches_ns: list[int] = []
    turns.begin()
    # A program whose calls turned slow is not waited for.
    meant_ns = int(job["batches"] * job["batch_seconds"] * 1e9)
    patience = clock() + max(0, min(left_ns - spent_ns, 10 * meant_ns))
    while not batches_ns or (len(batches_ns) < job["batches"] and clock() < patience):
        begin = clock()
        for _ in range(batch_calls):
            result = step(*arguments)
        result = sync(result)
        batches_ns.append(clock() - begin)
    turns.end()
    turns.close()
    timed = {"calls_ns": calls_ns, "batch_calls": batch_calls, "batches_ns": batches_ns}
    return {**timed, "turn_calls": turns.calls}, result


def describe(adapter: "Adapter", arguments: "tuple[object, ...]") -> "Job":
    """What the protocol of the case records about its data, threads and arithmetic."""
    data = [adapter.describe(leaf) for leaf in adapter.leaves(arguments)]
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "data": [d for d in data if d is not None],
        "threads": {"cpus": len(affinity(0)) if affinity else os.cpu_count(), **adapter.threads()},
        "precision": adapter.precision(),
        "sync": adapter.sync_policy,
        "writes_bytecode": not sys.dont_write_bytecode,
    }


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


def tell(job: "Job", report: "Job") -> None:
    # Imported after the last timestamp: json would pre-warm modules that jax also loads.
    import json

    line = memoryview(json.dumps(report, allow_nan=False).encode() + b"\n")
    while line:
        line = line[os.write(job["fd"], line) :]
