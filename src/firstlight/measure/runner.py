"""Runs a plan: check, prime, then timed rounds, one process at a time, each kept as it comes."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from firstlight.measure import cache
from firstlight.measure.process import Outcome, Turn, run_worker
from firstlight.records import (
    PHASES,
    CacheProof,
    Case,
    ColdStart,
    Correctness,
    MemoryUse,
    Sample,
    Settings,
    WarmCalls,
    case_flags,
    jobs,
    now,
    slug,
)


class Runner:
    """Measures cases and hands every `Sample` to `keep` before the next process starts.

    `done` are the samples of an interrupted run: what is there is not measured again.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        settings: Settings,
        keep: Callable[[Sample], None],
        done: Sequence[Sample] = (),
        spawn: Callable[..., Outcome] = run_worker,
    ) -> None:
        self.cases = [case for case in cases if case.skipped is None]
        self.settings = settings
        self._keep = keep
        self._spawn = spawn
        self._done = {(s.case, s.kind, s.index): s for s in done}
        # The last attempt counts: a gate repeats what broke.
        self._bad = {s.case for s in self._done.values() if s.kind != "timed" and _ends(s)}
        self.order = 1 + max((s.order for s in done), default=-1)  # of the next process
        self._stored: dict[str, frozenset[str]] = {}  # entries that the priming process left
        self._refusals: dict[str, tuple[str, ...]] = {}
        self._compiler_bytes: dict[str, Mapping[str, int] | None] = {}
        for sample in done:
            self._remember(sample)

    def __enter__(self) -> Self:
        self._scratch = Path(tempfile.mkdtemp(prefix="firstlight-"))
        compile_bytecode()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def jobs(self) -> list[tuple[Case, str, int]]:
        """Every process of the plan: (case, kind, number), in run order."""
        return jobs(self.cases, self.settings)

    def run(self, watch: Callable[[int, Sequence[tuple[Case, str, int]]], None]) -> None:
        """Measure what is missing; `watch(number, jobs)` is called before each process."""
        jobs = self.jobs()
        for number, job in enumerate(jobs):
            if self.is_due(*job):
                watch(number, jobs)
                self.take(*job)

    def is_due(self, case: Case, kind: str, index: int) -> bool:
        """Whether this process has to run: its case is sound, and it has not run before."""
        if not self.is_sound(case):
            return False
        if (case.id, kind, index) not in self._done:
            return True
        # The reference and the primed cache live in scratch space: they are made again.
        again = kind == "prime" or (kind == "check" and case.reference is not None)
        return again and self._needed(case)

    def is_sound(self, case: Case) -> bool:
        """Whether neither its check nor its priming has failed."""
        return case.id not in self._bad

    def take(self, case: Case, kind: str, index: int, turn: Turn | None = None) -> Sample:
        """Run one process of the plan, keep its sample, and learn from it."""
        sample = self.measure(case, kind, index, turn)
        before = self._done.get((case.id, kind, index))
        if before is None or _ends(before) or _ends(sample):
            self._keep(sample)  # also a repeated check that now fails, or no longer does
            self.order += 1
        self._remember(sample)
        if kind != "timed" and _ends(sample):
            self._bad.add(case.id)
        elif kind != "timed":
            self._bad.discard(case.id)
        return sample

    def _needed(self, case: Case) -> bool:
        return any((case.id, "timed", i) not in self._done for i in range(self.settings.processes))

    def _remember(self, sample: Sample) -> None:
        if sample.kind == "check" and sample.memory is not None:
            self._compiler_bytes[sample.case] = sample.memory.compiler_bytes
        if sample.kind == "prime":
            self._refusals[sample.case] = tuple(sample.facts.get("refusals", ()))

    def measure(self, case: Case, kind: str, index: int, turn: Turn | None = None) -> Sample:
        """Run one process of a case and turn what came back into a sample."""
        directory = self._scratch / "cache" / slug(case.id)
        if kind == "timed" and case.cache == "warm":
            cache.restore(directory, self._stored.get(case.id, frozenset()))
        else:
            cache.empty(directory)
        before = cache.entries(directory, case.cache_kind)
        load, started = _load(), now()
        outcome = self._spawn(
            self._job(case, kind),
            worker_environment(case, directory),
            self.settings.timeout_seconds,
            self.settings.affinity,
            **({} if turn is None else {"turn": turn}),
        )
        after = cache.entries(directory, case.cache_kind)
        if kind == "prime":
            self._stored[case.id] = cache.files(directory)
        common: dict[str, Any] = {
            "case": case.id,
            "kind": kind,
            "index": index,
            "order": self.order,
            "started_at": started,
            "load_before": load,
        }
        status, reason = _process_status(outcome)
        if status != "ok" or outcome.report is None:  # no report: also for the type checker
            tail = outcome.output_tail or None
            usage = bool(outcome.report and "error" in outcome.report)
            return Sample(
                **common, status=status, reason=reason, stderr_tail=tail, facts={"usage": usage}
            )
        return self._sample(case, kind, common, outcome, outcome.report, before, after)

    def _sample(
        self,
        case: Case,
        kind: str,
        common: dict[str, Any],
        outcome: Outcome,
        report: dict[str, Any],
        before: frozenset[str],
        after: frozenset[str],
    ) -> Sample:
        correctness = _correctness(case, report)
        proof: CacheProof | None = None
        status, reason = "ok", None
        if not correctness.passed:
            status, reason = "failed", report["correctness"]["reason"]
        elif kind == "timed":
            counts = {**report["cache"], **report["counts"]}
            proof = cache.prove(
                case.cache, case.cache_kind, before, after, counts, self._refusals.get(case.id, ())
            )
            if not proof.proven:
                status, reason = "unproven", proof.reason
        timed = kind == "timed" and correctness.passed
        cold = cold_start(outcome, report) if timed else None
        if cold is not None and min(s or 0.0 for s in cold.phases_seconds.values()) < 0:
            status, reason = "failed", "the framework reports more time than has passed"
        return Sample(
            **common,
            status=status,
            reason=reason,
            cold=cold,
            warm=_warm(report) if timed else None,
            memory=MemoryUse(
                peak_host_bytes={p: report["peak_host_bytes"].get(p) for p in PHASES},
                peak_device_bytes=report["peak_device_bytes"],
                compiler_bytes=report.get("compiler_bytes") or self._compiler_bytes.get(case.id),
            ),
            cache=proof,
            correctness=correctness,
            counts=report["counts"],
            facts={**report.get("facts", {}), "refusals": report["cache"]["refusals"]}
            if kind != "timed"
            else {},
        )

    def _job(self, case: Case, kind: str) -> dict[str, Any]:
        references = self._scratch / "references"
        references.mkdir(exist_ok=True)
        return worker_job(case, kind, self.settings, references / f"{slug(case.id)}.npz")


def worker_job(case: Case, kind: str, settings: Settings, reference_path: Path) -> dict[str, Any]:
    """The job of a worker: plain values only, because they travel marshalled."""
    return {
        "kind": kind,
        "adapter": case.adapter,
        "backend": case.backend,
        "program": case.program,
        "file": case.file,
        "size": case.size,
        # A user's own parameters are read from the file: they need not survive a journey.
        "parameters": {} if case.file else dict(case.parameters),
        "seed": case.seed,
        "reference": case.reference,
        "reference_path": str(reference_path),
        "tolerance": case.tolerance,
        "timeout_seconds": settings.timeout_seconds,
        "warm_calls": settings.warm_calls,
        "warm_calls_least": settings.warm_calls_least,
        "warm_seconds": settings.warm_seconds,
        "batches": settings.batches,
        "batch_seconds": settings.batch_seconds,
    }


def compile_bytecode(python: str = sys.executable) -> None:
    """Write the .pyc files of what the worker loads of ours, as an installation would.

    PYTHONDONTWRITEBYTECODE would otherwise make every worker compile the instrument anew. Where the
    package cannot be written to, the few milliseconds stay, visible as `unattributed`.
    """
    package = Path(__file__).parent.parent
    names = ("", "measure", "measure/adapters", "workloads", "workloads/programs", "histfactory")
    folders = [str(package / name) for name in names]
    if python == sys.executable:
        for folder in folders:
            compileall.compile_dir(folder, maxlevels=0, quiet=2)
    else:
        command = [python, "-P", "-m", "compileall", "-q", "-l", *folders]
        subprocess.run(command, capture_output=True, timeout=120, check=False)


def worker_environment(case: Case, directory: Path) -> dict[str, str]:
    """The inherited environment without anybody's cache settings, plus the case's own flags.

    A trace of `firstlight run` itself does not go on into what it measures.
    """
    without = {*cache.INHERITED, "FIRSTLIGHT_TRACE"}
    inherited = {k: v for k, v in os.environ.items() if k not in without}
    flags = case_flags(case, directory)
    if "XLA_FLAGS" in inherited and "XLA_FLAGS" in flags:  # a list of flags: the case adds its own
        flags["XLA_FLAGS"] = f"{inherited['XLA_FLAGS']} {flags['XLA_FLAGS']}"
    return inherited | flags


def cold_start(outcome: Outcome, report: Mapping[str, Any]) -> ColdStart:
    """Phases in seconds; what they leave of the parent's wall clock is `unattributed`."""
    if outcome.done_ns is None:
        raise ValueError("a process without a first result has no cold start")
    spans = report["spans_ns"]
    phases: dict[str, int | None] = dict.fromkeys(PHASES)
    phases["interpreter"] = report["started_ns"] - outcome.spawned_ns
    for name, (begin, end) in spans.items():
        phases[name] = end - begin
    inside = {name: ns for name, ns in report["first_call_ns"].items() if ns is not None}
    phases |= inside
    whole_call = phases["first_execute"] or 0
    phases["first_execute"] = whole_call - sum(inside.values()) - report["overhead_ns"]
    total = outcome.done_ns - outcome.spawned_ns
    attributed = sum(ns for ns in phases.values() if ns is not None)
    return ColdStart(
        total_seconds=total / 1e9,
        phases_seconds={p: None if ns is None else ns / 1e9 for p, ns in phases.items()},
        unattributed_seconds=(total - attributed) / 1e9,
    )


def _warm(report: Mapping[str, Any]) -> WarmCalls | None:
    warm = report.get("warm")
    if warm is None:
        return None
    return WarmCalls(
        call_seconds=tuple(ns / 1e9 for ns in warm["calls_ns"]),
        batch_calls=warm["batch_calls"],
        batch_seconds=tuple(ns / 1e9 for ns in warm["batches_ns"]),
        turn_calls=tuple(warm.get("turn_calls", ())),
    )


def _correctness(case: Case, report: Mapping[str, Any]) -> Correctness:
    found = report["correctness"]
    return Correctness(
        passed=found["passed"],
        max_relative_error=found["error"],
        tolerance=case.tolerance if case.reference else None,
        reference=case.reference or "none given: the result was only checked to be finite",
    )


def _process_status(outcome: Outcome) -> tuple[str, str | None]:
    if outcome.timed_out:
        return "timeout", "the process did not end within the time limit (--timeout)"
    if outcome.out_of_memory:
        said = (outcome.report or {}).get("exception", "ended by the kernel")
        return "out-of-memory", f"the process ran out of memory: {said}"
    if outcome.report is not None and "error" in outcome.report:
        return "failed", str(outcome.report["error"])
    if outcome.report is not None and "exception" in outcome.report:
        return "failed", str(outcome.report["exception"])
    if outcome.report is None and outcome.exit_code is not None and outcome.exit_code < 0:
        return "crashed", f"the process was ended by signal {-outcome.exit_code}"
    if outcome.report is None and outcome.exit_code != 0:
        last = outcome.output_tail.strip().splitlines()[-1:] or ["no output"]
        return "failed", f"the process exited with code {outcome.exit_code}: {last[0]}"
    if outcome.report is None:
        return "crashed", "the process ended without a report"
    return "ok", None


def _ends(sample: Sample) -> bool:
    """A case whose check or priming failed is not timed."""
    return sample.status != "ok"


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
