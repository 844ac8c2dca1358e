"""Turns a request into a `Plan`: cases, sample sizes, machine; and resumes an interrupted run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.measure import case_selection, user_file
from firstlight.measure.cache import POLICIES
from firstlight.measure.case_selection import SelectionError, suggestion
from firstlight.measure.host import describe_host, harness, noise_warnings
from firstlight.records import Case, JsonObject, Plan, RecordError, Settings, now, to_json
from firstlight.records.run_directory import RunDirectory
from firstlight.workloads.catalog import SUITES, registered

#: Comparing two runs of n processes takes n² pairs: about a second at this n.
MAX_PROCESSES = 2000


@dataclass(frozen=True)
class Request:
    """What to run; None means the default of the target."""

    target: str = "quick"
    pattern: str | None = None  # only cases whose name matches this regular expression
    backends: Sequence[str] | None = None
    caches: Sequence[str] | None = None
    effort: str | None = None  # "quick" or "rigorous"
    processes: int | None = None
    timeout_seconds: float | None = None
    affinity: tuple[int, ...] | None = None
    seed: int = 0


def plan_run(request: Request) -> Plan:
    """The plan for a request; cases that cannot run here are marked as skipped."""
    _require_usable(request)
    cases = cases_of(request)
    if all(case.skipped for case in cases):
        reasons = "; ".join(sorted({str(case.skipped) for case in cases}))
        raise SelectionError(f"no case can run here: {reasons}.")
    return plan_of(request.target, cases, _settings(request))


def plan_of(target: str, cases: Sequence[Case], settings: Settings) -> Plan:
    """A plan to measure these cases now, on this machine."""
    host = describe_host(watch_seconds=0.5)
    return Plan(
        created_at=now(),
        target=target,
        harness=harness(),
        host=host,
        warnings=tuple(noise_warnings(host)),
        fingerprint=fingerprint(cases),
        settings=settings,
        cases=tuple(cases),
    )


def fingerprint(cases: Sequence[Case]) -> JsonObject:
    """Everything that must stay the same when a run is resumed."""
    host = describe_host()
    files = sorted({case.file for case in cases if case.file})
    return {
        "harness": harness(),
        "python": host["python"]["version"],
        "packages": host["packages"],
        "environment": host["environment"],
        "cpu": host["cpu"],
        "files": {f: hashlib.sha256(Path(f).read_bytes()).hexdigest() for f in files},
    }


def _require_usable(request: Request) -> None:
    """Reject invalid values; those of the command line have been checked before."""
    for cache in request.caches or ():
        if cache not in POLICIES:
            raise SelectionError(f"unknown cache policy {cache!r}.{suggestion(cache, POLICIES)}")
    if request.effort not in (None, "quick", "rigorous"):
        raise SelectionError(f"effort {request.effort!r} is neither 'quick' nor 'rigorous'.")
    if request.processes is not None and not 1 <= request.processes <= MAX_PROCESSES:
        raise SelectionError(f"{request.processes} processes: give 1 to {MAX_PROCESSES}.")
    if request.timeout_seconds is not None and not request.timeout_seconds > 0:
        raise SelectionError(f"time limit {request.timeout_seconds} s: give a positive number.")


def cases_of(request: Request) -> list[Case]:
    """The cases of a suite, a workload or a user's file; those that cannot run here are marked."""
    backends, workloads = registered()
    if request.target.endswith(".py"):
        wanted = case_selection.resolve_backends(request.backends, backends)
        cases = user_file.cases_in(Path(request.target), backends, wanted, request.caches)
        cases = case_selection.filter_cases(cases, request.pattern)
    else:
        cases = case_selection.select(
            request.target, workloads, backends, request.backends, request.caches, request.pattern
        )
    return case_selection.mark_missing(cases, backends)


def _settings(request: Request) -> Settings:
    effort = request.effort or (request.target if request.target in SUITES else "standard")
    usual = case_selection.SAMPLING[effort]
    return replace(
        usual,
        processes=request.processes or usual.processes,
        timeout_seconds=request.timeout_seconds or usual.timeout_seconds,
        affinity=request.affinity,
        seed=request.seed,
    )


class ResumeError(FirstlightError):
    """Resuming the run would mix two experiments."""


def reopen(
    path: Path, require_same: Callable[[Plan], object] | None = None
) -> tuple[RunDirectory, Plan]:
    """Open the directory of an interrupted run, and read its plan.

    require_same: raises if the run cannot be resumed. The default raises if this machine, its
        software or the measured file have changed.
    """
    directory = RunDirectory.open(path)
    try:
        plan = directory.plan()
        (require_same or _require_same)(plan)
    except FirstlightError as error:
        directory.close()
        if isinstance(error, RecordError):
            raise ResumeError(f"The plan is damaged: {error}. Start a new run.") from None
        raise
    return directory, plan


def _require_same(plan: Plan) -> None:
    """Raise unless program, environment and machine are those of the plan."""
    now = fingerprint(plan.cases)
    names = {
        "harness": "Firstlight itself",
        "python": "the Python version",
        "packages": "the installed packages",
        "environment": "the environment variables",
        "cpu": "the machine",
        "files": "the benchmark file",
    }
    changed = [names[n] for n in now if to_json(now[n]) != plan.fingerprint.get(n)]
    if changed:
        raise ResumeError(
            f"{' and '.join(changed)} changed since this run began. Resuming would mix two "
            "experiments: start a new run."
        )
