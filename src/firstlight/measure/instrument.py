"""Runs inside the measured process: phases, the check, warm calls, and one report.

Up to the first result this imports `sys`, `os`, `time` and builtin modules, then the framework and
the program under test. It writes `done` to an inherited pipe as soon as the result is there, and
one line of JSON afterwards. Time outside all phases (loading this module and the adapter, reading
VmHWM between phases) is not hidden: the parent computes it as `unattributed`.
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
    """Do the job in `sys.argv[1]`: a dict of plain values, marshalled, in hexadecimal."""
    import marshal  # builtin: json would import modules that jax then gets for free

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
        send(job, {"exception": text[:2000], "out_of_memory": is_out_of_memory(error, text)})
        sys.exit(1)
    send(job, report)


def is_out_of_memory(error: BaseException, text: str) -> bool:
    # Each framework has its own exception type for this.
    words = ("RESOURCE_EXHAUSTED", "OutOfMemory", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(word in text for word in words)


class Clock:
    """Start and end of each phase on the system-wide monotonic clock, and VmHWM at each end."""

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
    if job["kind"] == "explain":  # for `gate --explain`: only the compilations
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
    """Time single calls, each synchronised; then batches of calls with one synchronisation each.

    In a gate both sides alternate, window by window; no time here includes waiting.
    """
    from firstlight.measure.turns import Turns

    clock, sync, turns = time.monotonic_ns, adapter.sync, Turns(job)
    # Never use more than half of the time that is left, even if the settings ask for more.
    left_ns = max(0, started_ns + int(job["timeout_seconds"] * 1e9) - clock()) // 2
    max_calls, min_calls = job["warm_calls"], min(job["warm_calls_least"], job["warm_calls"])
    planned_ns = int(job["warm_seconds"] * 1e9)
    # Slow calls get ten times as long, to reach their minimum number.
    limit_ns = min(left_ns, 10 * planned_ns)
    calls_ns: list[int] = []
    spent_ns, result = 0, None
    for window in range(1, turns.windows + 1):
        turns.begin()
        before, share = len(calls_ns), window / turns.windows
        opened = clock()
        while (
            len(calls_ns) == before
            or (len(calls_ns) < min_calls * share and spent_ns + clock() - opened < limit_ns)
            or (len(calls_ns) < max_calls * share and clock() - opened < planned_ns / turns.windows)
        ):
            begin = clock()
            result = sync(step(*arguments))
            calls_ns.append(clock() - begin)
        spent_ns += clock() - opened
        turns.end(len(calls_ns) - before)
        if spent_ns >= limit_ns:
            break

    mean_ns = sum(calls_ns) / len(calls_ns)
    batch_calls = max(1, min(1000, int(job["batch_seconds"] * 1e9 / max(1, mean_ns))))
    batches_ns: list[int] = []
    turns.begin()
    # Stop early if calls have become slow.
    planned_ns = int(job["batches"] * job["batch_seconds"] * 1e9)
    deadline = clock() + max(0, min(left_ns - spent_ns, 10 * planned_ns))
    while not batches_ns or (len(batches_ns) < job["batches"] and clock() < deadline):
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
    """The data, threads and arithmetic of a case, for its protocol."""
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
    """The text of /proc/self/status, to be parsed after the last timestamp."""
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


def send(job: "Job", report: "Job") -> None:
    # Imported after the last timestamp: json would load modules that jax loads too.
    import json

    line = memoryview(json.dumps(report, allow_nan=False).encode() + b"\n")
    while line:
        line = line[os.write(job["fd"], line) :]
