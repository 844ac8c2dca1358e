"""A worker that takes no time: `spawn` for Runner and PairedMeasurement, with chosen times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from firstlight.measure.process import Outcome

#: (side, kind, number of the process of this side, program, kind) -> (cold, warm seconds)
Times = Callable[[str, str, int], tuple[float, float]]


class FakeWorker:
    """Answers like a worker; it recognises the side by the interpreter it is started with."""

    def __init__(self, times: Times) -> None:
        self.times_of: Callable[[str], Times] = lambda program: times
        self.calls: list[tuple[str, str, str]] = []  # side, program, kind
        self.counts: dict[str, dict[str, int]] = {}
        self.fails: set[tuple[str, str]] = set()  # (side, kind)
        self.breaks: Callable[[str, str, int], bool] = lambda side, kind, number: False
        self.interrupt_after: int | None = None

    def __call__(
        self,
        job: Mapping[str, Any],
        environment: Mapping[str, str],
        timeout_seconds: float,
        affinity: tuple[int, ...] | None = None,
        python: str = "own",
        worker: Any = None,
        folder: Any = None,
        turn: Any = None,
    ) -> Outcome:
        if self.interrupt_after is not None and len(self.calls) >= self.interrupt_after:
            raise KeyboardInterrupt
        asked = (python, job["program"], job["kind"])
        number = self.calls.count(asked)
        self.calls.append(asked)
        cold, warm = self.times_of(job["program"])(python, job["kind"], number)
        passed = (python, job["kind"]) not in self.fails
        passed = passed and not self.breaks(python, job["kind"], number)
        total = int(cold * 1e9)
        report: dict[str, Any] = {
            "started_ns": total // 10,
            "spans_ns": {
                "import": (total // 10, total // 2),
                "setup": (total // 2, total // 2 + 1000),
                "first_execute": (total // 2 + 1000, total),
            },
            "first_call_ns": {"trace": None, "lower": None, "compile": total // 4},
            "overhead_ns": 0,
            "counts": {"traces": 1, "lowerings": 1, "compiles": 1, **self.counts.get(python, {})},
            "peak_device_bytes": None,
            "peak_host_bytes": {"import": 1 << 20},
            "correctness": {"passed": passed, "error": 0.0, "reason": None if passed else "wrong"},
            "cache": {"requests": None, "hits": None, "enabled": None, "refusals": []},
        }
        if job["kind"] == "timed":
            calls = [int(warm * 1e9)] * 40
            report["warm"] = {"calls_ns": calls, "batch_calls": 2, "batches_ns": [2 * calls[0]] * 5}
        else:
            report["facts"] = {
                "data": [],
                "threads": {"cpus": 1},
                "precision": {},
                "sync": "none needed",
                "modules": {"pkg": f"/private/{python}/pkg.py"},
            }
        if turn is not None and turn.meanwhile is not None:
            turn.meanwhile()
        return Outcome(0, total, report, 0, False, False, "")
