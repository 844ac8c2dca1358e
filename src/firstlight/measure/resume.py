"""Resuming an interrupted run: same plan, same software, or not at all."""

from __future__ import annotations

from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.measure.planning import fingerprint
from firstlight.records import Plan, RecordError, to_json
from firstlight.records.run_directory import RunDirectory


class ResumeError(FirstlightError):
    """The run cannot be continued without mixing two experiments."""


def take_up(path: Path) -> tuple[RunDirectory, Plan]:
    """The directory and the plan of the interrupted run in `path`."""
    directory = RunDirectory.open(path)
    try:
        plan = directory.plan()
        require_same(plan)
        return directory, plan
    except RecordError as error:
        directory.close()
        raise ResumeError(f"The plan is damaged: {error}. Start a new run.") from None
    except FirstlightError:
        directory.close()
        raise


def require_same(plan: Plan) -> None:
    """Refuse to add samples of another program, environment or machine."""
    now = fingerprint(plan.cases)
    changed = [name for name in now if to_json(now[name]) != plan.fingerprint.get(name)]
    if not changed:
        return
    words = {
        "harness": "Firstlight itself",
        "python": "the Python version",
        "packages": "the installed packages",
        "environment": "the environment variables",
        "cpu": "the machine",
        "files": "the benchmark file",
    }
    what = " and ".join(words[name] for name in changed)
    raise ResumeError(
        f"{what} changed since this run began. Samples of two experiments do not belong in one "
        "run: start a new one."
    )
