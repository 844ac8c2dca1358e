"""From a request to a `Plan`: which cases, how much of each, on what machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.measure import case_selection, user_file
from firstlight.measure.cache import POLICIES
from firstlight.measure.case_selection import SelectionError, nearest
from firstlight.measure.host import describe_host, harness, noise_warnings
from firstlight.records import Case, JsonObject, Plan, RecordError, Settings, now, to_json
from firstlight.records.run_directory import RunDirectory
from firstlight.workloads.catalog import SUITES, registered

#: Comparing n processes with as many others looks at n² pairs: so many take a second.
MAX_PROCESSES = 2000


@dataclass(frozen=True)
class Request:
    """What to run; None: the default for the target."""

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
    """The plan of a request; cases that cannot run here are marked as skipped."""
    _require_usable(request)
    cases = cases_of(request)
    if all(case.skipped for case in cases):
        reasons = "; ".join(sorted({str(case.skipped) for case in cases}))
        raise SelectionError(f"no case can run here: {reasons}.")
    return plan_of(request.target, cases, _settings(request))


def plan_of(target: str, cases: Sequence[Case], settings: Settings) -> Plan:
    """The plan of measuring these cases now, on this machine."""
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
    """What must not change between two parts of one run."""
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
    """Refuse values that cannot be meant; the command line has checked its own."""
    for cache in request.caches or ():
        if cache not in POLICIES:
            raise SelectionError(f"unknown cache policy {cache!r}.{nearest(cache, POLICIES)}")
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
    """The run cannot be continued without mixing two experiments."""


def take_up(
    path: Path, require_same: Callable[[Plan], object] | None = None
) -> tuple[RunDirectory, Plan]:
    """The directory and the plan of the interrupted run in `path`.

    require_same: raises if the run cannot be continued; default: if this machine, its software or
    the measured file have changed.
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
    """Refuse to add samples of another program, environment or machine."""
    now = fingerprint(plan.cases)
    words = {
        "harness": "Firstlight itself",
        "python": "the Python version",
        "packages": "the installed packages",
        "environment": "the environment variables",
        "cpu": "the machine",
        "files": "the benchmark file",
    }
    changed = [words[n] for n in now if to_json(now[n]) != plan.fingerprint.get(n)]
    if changed:
        raise ResumeError(
            f"{' and '.join(changed)} changed since this run began. Samples of two experiments do "
            "not belong in one run: start a new one."
        )
