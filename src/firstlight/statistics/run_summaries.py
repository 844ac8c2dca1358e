"""Summarises the plan and samples of a run directory to a `Run`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from firstlight.records import (
    Plan,
    RecordError,
    Run,
    Sample,
    can_validate,
    load_plan,
    load_run,
    load_samples,
    now,
    to_json,
)
from firstlight.statistics.case_summaries import summarise

SAMPLES = "samples.jsonl"


def assemble(
    folder: Path,
    plan: Plan,
    samples: Sequence[Sample],
    load_after: Sequence[float] | None = None,
) -> Run:
    """Summarise what has been measured so far."""
    summaries = summarise(plan.cases, samples, plan.settings.processes)
    warnings = list(plan.warnings)
    if not can_validate():
        warnings.append("run.json was not checked against its schema: jsonschema is not installed")
    path = folder / SAMPLES
    return Run(
        id=f"{plan.created_at}-{plan.target}",
        created_at=plan.created_at,
        finished_at=now(),
        complete=all(s.status != "incomplete" for s in summaries),
        harness=plan.harness,
        settings={"target": plan.target, **to_json(plan.settings)},
        host={**plan.host, "load_after": load_after},
        warnings=tuple(warnings),
        cases=summaries,
        samples_file=SAMPLES,
        samples_sha256=hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None,
    )


def load(path: Path) -> tuple[Run, list[Sample]]:
    """Load a run with its samples; a run without `run.json` (killed) is summarised."""
    folder = path if path.is_dir() else path.parent
    killed = path.is_dir() and not (path / "run.json").exists() and (path / "plan.json").exists()
    run = None if killed else load_run(path)
    file = folder / (run.samples_file if run else SAMPLES)
    if run and not file.exists():
        raise RecordError(f"{file}: the samples of this run are missing.")
    samples = list(load_samples(file)) if file.exists() else []
    return run or assemble(path, load_plan(path / "plan.json"), samples), samples
