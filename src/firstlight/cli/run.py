"""`firstlight run`: plan, measure, summarise, report. The main path, in order."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from firstlight.cli import values

if TYPE_CHECKING:
    from firstlight.cli.values import Commands
    from firstlight.cluster.samples import Fleet, MachineClass
    from firstlight.measure.planning import Request
    from firstlight.records import Plan
    from firstlight.records.run_directory import RunDirectory
    from firstlight.runs import Run


def add_to(commands: Commands) -> None:
    parser = values.add_command(
        commands,
        "run",
        handle,
        "Measure cold start, phase by phase, and warm calls in fresh processes.",
        EPILOG,
    )
    add = parser.add_argument
    add(
        "target",
        nargs="?",
        metavar="SUITE|WORKLOAD|FILE.py",
        help="quick (default), standard, full, the name of a workload, or your own file",
    )
    values.add_case_options(
        parser, "limit per process (default: 120 for quick, otherwise 300 or more)"
    )
    out = "output directory; must be new (default: firstlight-runs/TIME-TARGET)"
    add("--out", type=Path, metavar="DIR", help=out)
    fresh = "fresh processes per case (default: 6 for quick, 20 for full, otherwise 10)"
    add("-p", "--processes", type=values.processes, metavar="N", help=fresh)
    effort = parser.add_mutually_exclusive_group()
    for name, about in (
        ("quick", "6 processes per case, short"),
        ("rigorous", "30 processes per case, long"),
    ):
        effort.add_argument(
            f"--{name}", dest="effort", action="store_const", const=name, help=f"{about} warm part"
        )
    add("--seed", type=int, default=0, metavar="N", help="seed of the random order (default: 0)")
    add("--resume", type=Path, metavar="DIR", help="finish an interrupted run as planned")
    add(
        "--on",
        metavar="ray[://HOST:PORT]",
        help="measure on the nodes of a Ray cluster, one process at a time on each; machines of "
        "different classes make different runs (needs the extra 'ray')",
    )


EPILOG = """\
examples:
  firstlight run                                    the quick suite, about three minutes
  firstlight run mlp_train -b small --cache none --cache warm
  firstlight run bench_mine.py --backend jax-jit    functions marked with @firstlight.bench

exit codes: 0 success; 1 a case failed or is unproven; 2 wrong usage (including a @bench function
that breaks its contract) or a machine problem; 130 interrupted"""


def handle(options: argparse.Namespace) -> int:
    if options.on is not None:
        return on_cluster(options)
    directory, plan = resume(options) if options.resume is not None else begin(options)
    return finish(directory, plan, measure)


def on_cluster(options: argparse.Namespace) -> int:
    """One run per class of machine, each on all machines of its class at once."""
    from functools import partial

    from firstlight.cluster.samples import Fleet
    from firstlight.measure.planning import reopen
    from firstlight.present.quantities import counted
    from firstlight.records.run_directory import RunDirectory
    from firstlight.runs import default_path

    code, where = 0, f" --on {options.on}"
    with Fleet.on(options.on) as fleet:
        if options.resume is not None:
            require_plan_kept(options)
            directory, plan = reopen(options.resume, fleet.same)
            return finish(directory, plan, partial(measure_on, fleet, fleet.same(plan)), where)
        classes = fleet.classes()
        for machines in classes:
            plan = fleet.plan(machines, request(options))
            report_skipped(plan)
            path = options.out or default_path(plan)
            path = path if len(classes) == 1 else path / machines.name
            nodes = counted(len(machines.slots), "node")
            print(f"{nodes} of class {machines.name}", file=sys.stderr)
            directory = RunDirectory.create(path, plan)
            code = max(code, finish(directory, plan, partial(measure_on, fleet, machines), where))
            if code == 130:
                break
    return code


def finish(
    directory: RunDirectory,
    plan: Plan,
    measure: Callable[[RunDirectory, Plan], bool],
    where: str = "",
) -> int:
    """Measure what is missing, summarise and show it; where: the options to resume with."""
    from firstlight.present.quantities import duration
    from firstlight.report.terminal import print_run
    from firstlight.runs import conclude

    began = time.monotonic()
    try:
        interrupted = measure(directory, plan)
        run = conclude(directory, plan)
    finally:
        directory.close()
    try:
        print_run(run.record)
        print(f"\nTook {duration(time.monotonic() - began)}. Report: {run.report}", flush=True)
    except BrokenPipeError:  # the reader has left; the files are written
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (flushed once more at exit)
    if interrupted:
        kept = "Interrupted: finished samples are kept. Finish the run with:"
        print(f"{kept}\n  firstlight run --resume {run.path}{where}", file=sys.stderr)
        return 130
    return exit_code(run)


def resume(options: argparse.Namespace) -> tuple[RunDirectory, Plan]:
    from firstlight.measure.planning import reopen

    require_plan_kept(options)
    return reopen(options.resume)


def require_plan_kept(options: argparse.Namespace) -> None:
    from firstlight.measure.planning import ResumeError

    planned = ("target", "pattern", "backend", "cache", "out", "processes", "timeout", "affinity")
    if any(getattr(options, name) is not None for name in (*planned, "effort")):
        raise ResumeError(
            "--resume keeps the original plan. Omit the other options, or start a new run."
        )


def begin(options: argparse.Namespace) -> tuple[RunDirectory, Plan]:
    """Create the run requested on the command line."""
    from firstlight.measure.planning import plan_run
    from firstlight.records.run_directory import RunDirectory
    from firstlight.runs import default_path

    plan = plan_run(request(options))
    report_skipped(plan)
    return RunDirectory.create(options.out or default_path(plan), plan), plan


def request(options: argparse.Namespace) -> Request:
    from firstlight.measure.planning import Request

    return Request(
        target=options.target or "quick",
        pattern=options.pattern,
        backends=options.backend,
        caches=options.cache,
        effort=options.effort,
        processes=options.processes,
        timeout_seconds=options.timeout,
        affinity=options.affinity,
        seed=options.seed,
    )


def report_skipped(plan: Plan) -> None:
    from firstlight.present.quantities import counted

    for reason, count in Counter(case.skipped for case in plan.cases if case.skipped).items():
        print(f"Skipped: {counted(count, 'case')}, because {reason}.", file=sys.stderr)


def measure(directory: RunDirectory, plan: Plan) -> bool:
    """Run every missing process; return True if interrupted."""
    from firstlight.measure.runner import Runner
    from firstlight.present.progress import Progress

    done = directory.samples()
    try:
        with (
            values.signals_interrupt(),
            closing(Progress(sys.stderr)) as progress,
            Runner(plan.cases, plan.settings, directory.keep, done) as runner,
        ):
            runner.run(progress.before)
    except KeyboardInterrupt:
        return True
    return False


def measure_on(fleet: Fleet, machines: MachineClass, directory: RunDirectory, plan: Plan) -> bool:
    """Run every missing process on one class of node; return True if interrupted."""
    from firstlight.present.progress import Progress

    try:
        with values.signals_interrupt(), closing(Progress(sys.stderr)) as progress:
            fleet.measure(machines, plan, directory, progress.before)
    except KeyboardInterrupt:
        return True
    return False


def exit_code(run: Run) -> int:
    """Return 2 if a program breaks its contract, 1 if a case failed or is unproven, else 0."""
    if any(s.facts.get("usage") for s in run.samples):
        return 2
    return 0 if run.ok else 1
