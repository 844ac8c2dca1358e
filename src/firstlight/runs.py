"""Measuring from Python: `firstlight.run(...)` returns a `Run`, which notebooks render.

The command line uses the same steps: plan, measure, `conclude`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from firstlight.measure.host import load_average
from firstlight.measure.planning import Request, plan_run
from firstlight.measure.runner import Runner, Watch
from firstlight.present.progress import Progress
from firstlight.records import CaseSummary, Plan, Sample, stamp
from firstlight.records.run_directory import RunDirectory
from firstlight.records.summary import Run as RunRecord
from firstlight.report.html import notebook_html, render
from firstlight.report.terminal import run_tables
from firstlight.statistics.run_summaries import assemble, load


@dataclass(frozen=True, repr=False)
class Run:
    """A measured run: its summaries, its samples, and its directory."""

    path: Path
    record: RunRecord  # everything that `run.json` holds: host, settings, warnings, cases
    samples: tuple[Sample, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Load a run from the directory written by `firstlight run` or `firstlight.run`."""
        record, samples = load(Path(path))
        return cls(Path(path), record, tuple(samples))

    @property
    def cases(self) -> tuple[CaseSummary, ...]:
        """The summary of every case, in the order of the plan."""
        return self.record.cases

    @property
    def ok(self) -> bool:
        """Whether all cases that can run here are correct and have a proven cache policy."""
        return all(case.status in ("ok", "skipped") for case in self.cases)

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.path / "report.html"

    def __getitem__(self, case: str) -> CaseSummary:
        """The summary of the case with this name, as in `run["mlp_train[small]/numpy/none"]`."""
        for summary in self.cases:
            if summary.case == case:
                return summary
        raise KeyError(f"{case!r}: choose from {', '.join(summary.case for summary in self.cases)}")

    def __repr__(self) -> str:
        return f"{run_tables(self.record)}\n{self.path}"

    def _repr_html_(self) -> str:
        return notebook_html(self.record, self.samples)


def run(
    target: str | os.PathLike[str] = "quick",
    *,
    pattern: str | None = None,
    backends: Sequence[str] | None = None,
    caches: Sequence[Literal["none", "cold", "warm", "shared", "frozen", "tiered"]] | None = None,
    out: str | os.PathLike[str] | None = None,
    processes: int | None = None,
    effort: Literal["quick", "rigorous"] | None = None,
    affinity: Sequence[int] | None = None,
    timeout_seconds: float | None = None,
    seed: int = 0,
    progress: bool = True,
    on: str | None = None,
) -> Run:
    """Measure a suite, a workload or your own file in fresh processes, like `firstlight run`.

    - `target`: `quick`, `standard`, `full`, the name of a workload, or a path ending in `.py`
      with functions marked `@firstlight.bench`. Functions defined in a notebook cannot be measured,
      because each process imports the file again.
    - `pattern`: only cases whose name contains a match of this regular expression.
    - `backends`, `caches`: only these backends and persistent compilation cache policies.
    - `out`: the output directory, which must be new; default `firstlight-runs/TIME-TARGET`.
    - `processes`: fresh processes per case; default 6 (quick), 20 (full), otherwise 10.
    - `effort`: `quick` (6 processes, short warm part) or `rigorous` (30, long).
    - `affinity`: CPUs to pin the workers to.
    - `timeout_seconds`: time limit per process.
    - `seed`: seed of the random run order.
    - `progress`: whether to print progress on stderr.
    - `on`: `"ray"` or the address of a Ray cluster, to measure on its nodes, which must be machines
      of one class.

    Raises a `FirstlightError` that says what to do if nothing can be measured. A failing case does
    not raise: see `Run.ok` and the `status` of its summary. After an interruption, the samples so
    far are on disk, and `firstlight run --resume DIR` continues the run.
    """
    request = Request(
        target=os.fspath(target),
        pattern=pattern,
        backends=backends,
        caches=caches,
        effort=effort,
        processes=processes,
        timeout_seconds=timeout_seconds,
        affinity=None if affinity is None else tuple(affinity),
        seed=seed,
    )
    directory = None if out is None else Path(out)
    if on is None:
        return _measured(plan_run(request), directory, progress, _on_this_machine)
    from firstlight.cluster.samples import Fleet

    with Fleet.on(on) as fleet:
        machines = fleet.only_class()
        plan = fleet.plan(machines, request)
        return _measured(plan, directory, progress, partial(fleet.measure, machines))


def _on_this_machine(plan: Plan, directory: RunDirectory, watch: Watch) -> None:
    with Runner(plan.cases, plan.settings, directory.keep) as runner:
        runner.run(watch)


def _measured(
    plan: Plan,
    path: Path | None,
    progress: bool,
    measure: Callable[[Plan, RunDirectory, Watch], None],
) -> Run:
    """Carry out a plan in a new directory. If measuring fails, summarise the samples so far."""
    directory = RunDirectory.create(path or default_path(plan), plan)
    shown = Progress(sys.stderr) if progress else None
    try:
        try:
            measure(plan, directory, shown.before if shown else lambda number, jobs: None)
        finally:
            if shown:
                shown.close()
            done = conclude(directory, plan)
    finally:
        directory.close()
    return done


def conclude(directory: RunDirectory, plan: Plan) -> Run:
    """Summarise the samples so far, and write the summary and the report."""
    samples = directory.samples()
    record = assemble(directory.path, plan, samples, load_average())
    directory.publish(record, render(record, samples))
    return Run(directory.path, record, tuple(samples))


def default_path(plan: Plan) -> Path:
    """The default directory of a run: firstlight-runs/TIME-TARGET."""
    return Path("firstlight-runs") / f"{stamp(plan.created_at)}-{Path(plan.target).stem}"
