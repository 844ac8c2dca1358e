"""A run on disk: what was planned, every sample as it came, and the result.

    plan.json       cases, settings, host: written before the first process
    samples.jsonl   one line per process, appended and synced
    run.json        the summary, written whole, again and again
    report.html     the same for a person

A kill at any moment leaves a directory that `firstlight run --resume` can finish.
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
    """One run's directory, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._hold()

    @classmethod
    def create(cls, path: Path, plan: Plan) -> RunDirectory:
        """Make the directory and write the plan; an existing one is never written into."""
        require_new(path, "run")
        with writing(path, " Give another directory with --out."):
            path.mkdir(parents=True, exist_ok=True)
            directory = cls(path)
            write_json(path / "plan.json", plan)
        return directory

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Take up an interrupted run."""
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
        hint = f" What is there is safe; free some space, then: firstlight run --resume {self.path}"
        return writing(self.path, hint)

    def keep(self, sample: Sample) -> None:
        with self._writing():
            append_sample(self.samples_path, sample)

    def samples(self) -> list[Sample]:
        return list(load_samples(self.samples_path)) if self.samples_path.exists() else []

    def publish(self, run: Run, html: str) -> Path:
        """Write the result and the report; returns the report's path."""
        report = self.path / "report.html"
        with self._writing():
            write_json(self.path / "run.json", run, schema="run-1.schema.json")
            write_text(report, html)
        return report

    def close(self) -> None:
        (self.path / ".lock").unlink(missing_ok=True)
        self._lock.close()

    def _cut_torn_line(self) -> None:
        """Drop the end of a line that a kill or a full disk left unfinished."""
        if not self.samples_path.exists():
            return
        content = self.samples_path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.samples_path, whole)


def require_new(path: Path, what: str) -> None:
    """Refuse an output directory that holds something; `what` is what could be resumed there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputError(
            f"{path} exists and is not empty. Nothing is overwritten: give another --out, or "
            f"finish an interrupted {what} with --resume {path}."
        )
