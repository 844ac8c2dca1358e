"""A run directory's plan and samples, put together to a `Run`: after measuring, or at any time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firstlight.measure.plan import Case, Settings
from firstlight.measure.runner import case_flags
from firstlight.records import (
    RecordError,
    Run,
    Sample,
    can_validate,
    from_json,
    load_object,
    load_run,
    load_samples,
    now,
    to_json,
)
from firstlight.statistics.summary import summarise

SAMPLES = "samples.jsonl"


def assemble(
    folder: Path,
    plan: Mapping[str, Any],
    samples: Sequence[Sample],
    load_after: Sequence[float] | None = None,
) -> Run:
    """The summary of what has been measured so far."""
    cases = [from_json(Case, case) for case in plan["cases"]]
    settings = from_json(Settings, plan["settings"])
    # The cache directory is private to the run: its path is not part of the protocol.
    flags = {case.id: case_flags(case, Path("(private)")) for case in cases}
    summaries = summarise(cases, samples, settings.processes, flags)
    warnings = list(plan["warnings"])
    if not can_validate():
        warnings.append("run.json was not checked against its schema: jsonschema is not installed")
    path = folder / SAMPLES
    return Run(
        id=f"{plan['created_at']}-{plan['target']}",
        created_at=plan["created_at"],
        finished_at=now(),
        complete=all(s.status != "incomplete" for s in summaries),
        harness=plan["harness"],
        settings={"target": plan["target"], **to_json(settings)},
        host={**plan["host"], "load_after": load_after},
        warnings=tuple(warnings),
        cases=summaries,
        samples_file=SAMPLES,
        samples_sha256=hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None,
    )


def load(path: Path) -> tuple[Run, list[Sample]]:
    """The run in a directory with its samples.

    A directory without `run.json` is one whose run was killed: it is summarised as far as it got.
    """
    folder = path if path.is_dir() else path.parent
    if path.is_dir() and not (path / "run.json").exists() and (path / "plan.json").exists():
        samples = list(load_samples(path / SAMPLES)) if (path / SAMPLES).exists() else []
        return assemble(path, load_object(path / "plan.json"), samples), samples
    run = load_run(path)
    file = folder / run.samples_file
    if not file.exists():
        raise RecordError(f"{file}: the samples of this run are missing.")
    return run, list(load_samples(file))
