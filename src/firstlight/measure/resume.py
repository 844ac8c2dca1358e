"""Taking up an interrupted run: same plan, same software, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firstlight.measure.host import describe_host, harness
from firstlight.measure.plan import Case, Settings
from firstlight.records import FirstlightError, from_json, to_json
from firstlight.run_directory import RunDirectory


class ResumeError(FirstlightError):
    """The run cannot be continued without mixing two experiments."""


def take_up(path: Path) -> tuple[RunDirectory, list[Case], Settings, dict[str, Any]]:
    """The directory, cases, settings and plan of the interrupted run in `path`."""
    directory = RunDirectory.open(path)
    try:
        plan = directory.plan()
        require_same(plan)
        cases = [from_json(Case, case) for case in plan["cases"]]
        return directory, cases, from_json(Settings, plan["settings"]), plan
    except FirstlightError:
        directory.close()
        raise
    except (KeyError, TypeError, AttributeError) as error:
        directory.close()
        raise ResumeError(
            f"{path / 'plan.json'} is damaged ({error!r}). Start a new run."
        ) from None


def fingerprint(cases: Sequence[Case]) -> dict[str, Any]:
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


def require_same(plan: dict[str, Any]) -> None:
    """Refuse to add samples of another program, environment or machine."""
    then = plan["fingerprint"]
    now = fingerprint([from_json(Case, case) for case in plan["cases"]])
    changed = [name for name in now if to_json(now[name]) != then.get(name)]
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
        f"{what} changed since this run began. Samples of two experiments do not belong into one "
        "run: start a new one."
    )
