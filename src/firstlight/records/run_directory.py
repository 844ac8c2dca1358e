"""The directory of a run: plan, samples, summary and report.

    plan.json       cases, settings, host: written before the first process
    samples.jsonl   one line per process, appended and synced
    run.json        the summary, replaced atomically
    report.html     the summary as a page

After a kill at any moment `firstlight run --resume` can finish the run.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from firstlight.folder_lock import hold
from firstlight.records.codec import OutputError
from firstlight.records.files import append_sample, load_plan, load_samples, write_json, writing
from firstlight.records.plan import Plan
from firstlight.records.samples import Sample
from firstlight.records.summary import Run
from firstlight.whole_files import write_text


class RunDirectory:
    """A run's directory, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._hold()

    @classmethod
    def create(cls, path: Path, plan: Plan) -> RunDirectory:
        """Make the directory and write the plan; refuse a directory that is not empty."""
        require_new(path, "run")
        with writing(path, " Give another directory with --out."):
            path.mkdir(parents=True, exist_ok=True)
            directory = cls(path)
            write_json(path / "plan.json", plan)
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Open an interrupted run to resume it."""
        if not (path / "plan.json").is_file():
            raise OutputError(
                f"{path}: there is no plan.json, so this is not a run that can be resumed."
            )
        directory = cls(path)
        directory._cut_torn_line()
        return directory

    def _hold(self) -> IO[bytes]:
        with writing(self.path):
            lock = hold(self.path)
        if lock is None:
            raise OutputError(f"{self.path}: another process is measuring into it.")
        return lock

    @property
    def samples_path(self) -> Path:
        return self.path / "samples.jsonl"

    def plan(self) -> Plan:
        return load_plan(self.path / "plan.json")

    def _writing(self) -> AbstractContextManager[None]:
        hint = f" Samples are safe; free some space, then: firstlight run --resume {self.path}"
        return writing(self.path, hint)

    def keep(self, sample: Sample) -> None:
        with self._writing():
            append_sample(self.samples_path, sample)

    def samples(self) -> list[Sample]:
        return list(load_samples(self.samples_path)) if self.samples_path.exists() else []

    def publish(self, run: Run, html: str) -> Path:
        """Write the summary and the report; return the path of the report."""
        report = self.path / "report.html"
        with self._writing():
            write_json(self.path / "run.json", run, schema="run-1.schema.json")
            write_text(report, html)
        return report

    def close(self) -> None:
        (self.path / ".lock").unlink(missing_ok=True)
        self._lock.close()

    def _cut_torn_line(self) -> None:
        """Remove an unfinished last line, left by a kill or a full disk."""
        if not self.samples_path.exists():
            return
        content = self.samples_path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.samples_path, whole)


def require_new(path: Path, what: str) -> None:
    """Refuse an output directory that is not empty; `what` (run, gate) might be resumed instead."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(
            f"{path} exists and is not empty. Nothing is overwritten: give another --out, or "
            f"finish an interrupted {what} with --resume {path}."
        )
