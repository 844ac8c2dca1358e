"""Runs a plan: check, prime, then timed rounds. One process at a time, each saved when it ends."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

from firstlight.measure import cache
from firstlight.measure.host import load_average
from firstlight.measure.process import Outcome, Report, Turn, run_worker
from firstlight.records import (
    PHASES,
    PRIMED,
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

#: Called before each process with its index and the list of all jobs.
Watch = Callable[[int, Sequence[tuple[Case, str, int]]], None]


class Runner:
    """Measures what is not `done`, and passes each `Sample` to `keep` before the next process."""

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
        self.order = 1 + max((s.order for s in done), default=-1)  # of the next process
        self._bad: set[str] = set()  # cases whose check or priming failed at the last attempt
        self._stored: dict[str, frozenset[str]] = {}  # files that the priming process left
        self._refusals: dict[str, tuple[str, ...]] = {}
        self._compiler_bytes: dict[str, Mapping[str, int] | None] = {}
        for sample in done:
            self._note(sample)

    def __enter__(self) -> Self:
        self._scratch = Path(tempfile.mkdtemp(prefix="firstlight-"))
        compile_bytecode()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self, watch: Watch) -> None:
        """Measure what is missing."""
        planned = jobs(self.cases, self.settings)
        for number, job in enumerate(planned):
            if self.is_due(*job):
                watch(number, planned)
                self.take(*job)

    def is_due(self, case: Case, kind: str, index: int) -> bool:
        """Whether this process has to run: its case is sound, and it has not run or must again."""
        if self.is_missing(case, kind, index):
            return True
        # The reference and the primed cache are temporary files, created again if needed.
        again = kind == "prime" or (kind == "check" and case.reference is not None)
        timed = range(self.settings.processes)
        again = again and self.is_sound(case)
        return again and any((case.id, "timed", i) not in self._done for i in timed)

    def is_missing(self, case: Case, kind: str, index: int) -> bool:
        """Whether this process has no sample yet and its case is sound."""
        return self.is_sound(case) and (case.id, kind, index) not in self._done

    def is_sound(self, case: Case) -> bool:
        """Whether neither its check nor its priming has failed."""
        return case.id not in self._bad

    def take(self, case: Case, kind: str, index: int, turn: Turn | None = None) -> Sample:
        """Run one process of the plan, and accept its sample."""
        sample = self.measure(case, kind, index, turn)
        self.accept(sample)
        return sample

    def accept(self, sample: Sample) -> None:
        """Keep a sample unless it repeats an earlier one; note what later processes depend on."""
        before = self._done.get((sample.case, sample.kind, sample.index))
        if before is None or before.status != "ok" or sample.status != "ok":
            self._keep(sample)  # including a repeated check whose status has changed
            self.order += 1
        self._note(sample)

    def _note(self, sample: Sample) -> None:
        if sample.kind == "check" and sample.memory is not None:
            self._compiler_bytes[sample.case] = sample.memory.compiler_bytes
        if sample.kind == "prime":
            self._refusals[sample.case] = tuple(sample.facts.get("refusals", ()))
        if sample.kind != "timed" and sample.status != "ok":
            self._bad.add(sample.case)
        elif sample.kind != "timed":
            self._bad.discard(sample.case)

    def measure(self, case: Case, kind: str, index: int, turn: Turn | None = None) -> Sample:
        """Run one process of a case, and turn its outcome into a sample."""
        directory = self._scratch / "cache" / slug(case.id)
        if kind == "timed" and case.cache in PRIMED:
            cache.restore(directory, self._stored.get(case.id, frozenset()))
        else:
            cache.empty(directory)
        references = self._scratch / "references"
        references.mkdir(exist_ok=True)
        before = cache.entries(directory, case.cache_kind)
        averages = load_average()
        load = averages[0] if averages else None
        sample = Sample(case.id, kind, index, self.order, now(), "ok", load_before=load)
        outcome = self._spawn(
            worker_job(case, kind, self.settings, references / f"{slug(case.id)}.npz"),
            worker_environment(case, directory),
            self.settings.timeout_seconds,
            self.settings.affinity,
            **({} if turn is None else {"turn": turn}),
        )
        after = cache.entries(directory, case.cache_kind)
        if kind == "prime":
            self._stored[case.id] = cache.files(directory)
        if failure := _failure(outcome):
            status, reason = failure
            usage = "error" in (outcome.report or {})
            tail = outcome.output_tail or None
            facts = {"usage": usage}
            return replace(sample, status=status, reason=reason, stderr_tail=tail, facts=facts)
        return self._filled(sample, case, outcome, before, after)

    def _filled(
        self,
        sample: Sample,
        case: Case,
        outcome: Outcome,
        before: frozenset[str],
        after: frozenset[str],
    ) -> Sample:
        """The sample of a process that sent a report: status and measured values."""
        report = outcome.report or {}
        correctness = _correctness(case, report)
        memory = MemoryUse(
            peak_host_bytes={p: report["peak_host_bytes"].get(p) for p in PHASES},
            peak_device_bytes=report["peak_device_bytes"],
            compiler_bytes=report.get("compiler_bytes") or self._compiler_bytes.get(case.id),
        )
        sample = replace(sample, memory=memory, correctness=correctness, counts=report["counts"])
        if not correctness.passed:
            reason = report["correctness"]["reason"]
            sample = replace(sample, status="failed", reason=reason)
        if sample.kind != "timed":
            facts = {**report.get("facts", {}), "refusals": report["cache"]["refusals"]}
            return replace(sample, facts=facts)
        if not correctness.passed:
            return sample
        counts = {**report["cache"], **report["counts"]}
        refusals = self._refusals.get(case.id, ())
        proof = cache.prove(case.cache, case.cache_kind, before, after, counts, refusals)
        cold = cold_start(outcome, report)
        sample = replace(sample, cold=cold, warm=_warm(report), cache=proof)
        if min(s or 0.0 for s in cold.phases_seconds.values()) < 0:
            reason = "the framework reports more time than has passed"
            return replace(sample, status="failed", reason=reason)
        if not proof.proven:
            return replace(sample, status="unproven", reason=proof.reason)
        return sample


def worker_job(case: Case, kind: str, settings: Settings, reference_path: Path) -> Report:
    """The job of a worker: plain values, which `marshal` can write."""
    of_case = ("adapter", "backend", "program", "file", "size", "reference", "tolerance")
    return {
        **{name: getattr(case, name) for name in of_case},
        **asdict(settings),
        "kind": kind,
        "reference_path": str(reference_path),
        # Parameters of a user's file may be any values; the worker reads them from the file.
        "parameters": {} if case.file else dict(case.parameters),
        "seed": case.seed,
    }


def compile_bytecode(python: str = sys.executable) -> None:
    """Write the .pyc files of Firstlight's modules that the worker loads, as pip would.

    Otherwise, with PYTHONDONTWRITEBYTECODE, each worker would compile the instrument again. If the
    package is read-only, this costs a few milliseconds, recorded as `unattributed`.
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
    """The inherited environment without cache and trace settings, plus the flags of the case."""
    without = {*cache.INHERITED, "FIRSTLIGHT_TRACE"}
    inherited = {k: v for k, v in os.environ.items() if k not in without}
    flags = case_flags(case, directory)
    if "XLA_FLAGS" in inherited and "XLA_FLAGS" in flags:  # a list: append those of the case
        flags["XLA_FLAGS"] = f"{inherited['XLA_FLAGS']} {flags['XLA_FLAGS']}"
    return inherited | flags


def cold_start(outcome: Outcome, report: Report) -> ColdStart:
    """Phases in seconds; the rest of the parent's wall-clock time is `unattributed`."""
    if outcome.done_ns is None:
        raise ValueError("a process without a first result has no cold start")
    inside = {name: ns for name, ns in report["first_call_ns"].items() if ns is not None}
    phases: dict[str, int | None] = dict.fromkeys(PHASES)
    phases["interpreter"] = report["started_ns"] - outcome.spawned_ns
    phases |= {name: end - begin for name, (begin, end) in report["spans_ns"].items()} | inside
    whole_call = phases["first_execute"] or 0
    phases["first_execute"] = whole_call - sum(inside.values()) - report["overhead_ns"]
    total = outcome.done_ns - outcome.spawned_ns
    attributed = sum(ns for ns in phases.values() if ns is not None)
    return ColdStart(
        total_seconds=total / 1e9,
        phases_seconds={p: None if ns is None else ns / 1e9 for p, ns in phases.items()},
        unattributed_seconds=(total - attributed) / 1e9,
    )


def _warm(report: Report) -> WarmCalls | None:
    warm = report.get("warm")
    return warm and WarmCalls(
        call_seconds=tuple(ns / 1e9 for ns in warm["calls_ns"]),
        batch_calls=warm["batch_calls"],
        batch_seconds=tuple(ns / 1e9 for ns in warm["batches_ns"]),
        turn_calls=tuple(warm.get("turn_calls", ())),
    )


def _correctness(case: Case, report: Report) -> Correctness:
    found = report["correctness"]
    return Correctness(
        passed=found["passed"],
        max_relative_error=found["error"],
        tolerance=case.tolerance if case.reference else None,
        reference=case.reference or "none given: the result was only checked to be finite",
    )


def _failure(outcome: Outcome) -> tuple[str, str] | None:
    """Status and reason of a process without a usable report."""
    report = outcome.report
    if outcome.timed_out:
        return "timeout", "the process did not end within the time limit (--timeout)"
    if outcome.out_of_memory:
        said = (report or {}).get("exception", "ended by the kernel")
        return "out-of-memory", f"the process ran out of memory: {said}"
    if report is not None:
        said = report.get("error", report.get("exception"))
        return None if said is None else ("failed", str(said))
    if outcome.exit_code is not None and outcome.exit_code < 0:
        return "crashed", f"the process was ended by signal {-outcome.exit_code}"
    if outcome.exit_code != 0:
        last = outcome.output_tail.strip().splitlines()[-1:] or ["no output"]
        return "failed", f"the process exited with code {outcome.exit_code}: {last[0]}"
    return "crashed", "the process ended without a report"
