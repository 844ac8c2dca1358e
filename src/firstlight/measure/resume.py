"""Taking up an interrupted run: same plan, same software, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from firstlight.measure.host import describe_host, harness
from firstlight.measure.plan import Case, Settings
from firstlight.records import FirstlightError, from_json
from firstlight.run_directory import RunDirectory


class ResumeError(FirstlightError):
    """The run cannot be continued without mixing two experiments."""


def take_up(path: Path) -> tuple[RunDirectory, list[Case], Settings, dict[str, Any]]:
    """The directory, cases, settings and plan of the interrupted run in `path`."""
    directory = RunDirectory.open(path)
    try:
        plan = directory.plan()
        _same_software(plan)
        cases = [from_json(Case, case) for case in plan["cases"]]
        return directory, cases, from_json(Settings, plan["settings"]), plan
    except FirstlightError:
        directory.close()
        raise


def _same_software(plan: dict[str, Any]) -> None:
    host = describe_host()
    then = {"firstlight": plan["harness"]["version"], **plan["host"]["packages"]}
    then["python"] = plan["host"]["python"]["version"]
    now = {"firstlight": harness()["version"], **host["packages"]}
    now["python"] = host["python"]["version"]
    changed = sorted(name for name in then | now if then.get(name) != now.get(name))
    if changed:
        what = ", ".join(f"{name} {then.get(name)} → {now.get(name)}" for name in changed)
        raise ResumeError(
            f"the software has changed since this run began ({what}). Samples of two environments "
            "do not belong into one run: start a new one."
        )
    if plan["host"]["cpu"] != host["cpu"]:
        raise ResumeError("this run was begun on another machine. Start a new one here.")
