"""A gate on disk. Each side is a run directory of its own, which `show` and `compare` can read.

plan.json     what was asked for, both sides, the seed: written before the first process
base/ head/   plan.json, samples.jsonl, run.json, report.html, as `firstlight run` writes them
gate.json     the verdict with everything that it rests on
gate.md       the same for a pull request
explain/      with --explain: programs of failing cases and their differences
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from firstlight import records
from firstlight.errors import FirstlightError
from firstlight.gate.environments import protocol_packages
from firstlight.gate.measuring import SIDES, PairedCase, complete_rounds
from firstlight.gate.sides import Side
from firstlight.records import OutputError, Plan, Run, Sample, Settings, to_json
from firstlight.records.run_directory import RunDirectory
from firstlight.report.html import render
from firstlight.statistics.run_summaries import assemble

SCHEMA = "firstlight.gate-plan"


class GateDirectory:
    """One gate's directory, held by one process at a time."""

    def __init__(self, path: Path, sides: Mapping[str, RunDirectory]) -> None:
        self.path = path
        self._sides = dict(sides)

    @classmethod
    def create(
        cls, path: Path, plan: Mapping[str, Any], side_plans: Mapping[str, Plan]
    ) -> GateDirectory:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise OutputError(
                f"{path} exists and is not empty. Nothing is overwritten: give another --out, or "
                f"finish an interrupted gate with --resume {path}."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            records.write_json(path / "plan.json", plan)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}.") from None
        return cls(path, {n: RunDirectory.create(path / n, side_plans[n]) for n in SIDES})

    @classmethod
    def open(cls, path: Path) -> GateDirectory:
        """Take up an interrupted gate."""
        if not (path / "plan.json").is_file():
            raise OutputError(f"{path}: there is no plan.json, so no gate that can be resumed.")
        return cls(path, {name: RunDirectory.open(path / name) for name in SIDES})

    def keepers(self) -> dict[str, Callable[[Sample], None]]:
        return {name: directory.keep for name, directory in self._sides.items()}

    def plan(self) -> dict[str, Any]:
        return load_plan(self.path)

    def samples(self) -> dict[str, list[Sample]]:
        return {name: directory.samples() for name, directory in self._sides.items()}

    def runs(self, samples: Mapping[str, list[Sample]], load_after: Any = None) -> dict[str, Run]:
        """Both sides summarised, over the rounds that are complete."""
        plans = self._plans(samples)
        return {
            name: assemble(directory.path, plans[name], samples[name], load_after)
            for name, directory in self._sides.items()
        }

    def _plans(self, samples: Mapping[str, list[Sample]]) -> dict[str, Plan]:
        """Each side's plan with the number of rounds that came of it."""
        rounds = max(1, complete_rounds(samples))  # a run without any round is incomplete
        found = {}
        for name, directory in self._sides.items():
            plan = directory.plan()
            found[name] = replace(plan, settings=replace(plan.settings, processes=rounds))
        return found

    def publish_sides(self, load_after: Any = None) -> None:
        """Write both sides' summaries and reports, and plans that say how many rounds there were.

        How many it takes is decided on the way. A plan that went on saying 96 would not be that of
        a run of 12, and `publish` would refuse it; a resumed gate makes its own settings anew.
        """
        samples = self.samples()
        plans = self._plans(samples)
        for name, run in self.runs(samples, load_after).items():
            self._write_plan(name, plans[name])
            self._sides[name].publish(run, render(run, samples[name]))

    def _write_plan(self, side: str, plan: Plan) -> None:
        path = self._sides[side].path / "plan.json"
        try:
            records.write_json(path, plan)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}.") from None

    def write(self, name: str, text: str) -> Path:
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            records.write_text(path, text)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}.") from None
        return path

    def close(self) -> None:
        for directory in self._sides.values():
            with contextlib.suppress(OSError):
                directory.close()


def load_plan(path: Path) -> dict[str, Any]:
    plan = records.load_object(path / "plan.json")
    if plan.get("schema") != SCHEMA:
        raise OutputError(f"{path}: not a gate's directory (schema {plan.get('schema')!r}).")
    return plan


def side_plan(
    side: Side,
    cases: list[PairedCase],
    settings: Settings,
    target: str,
    host: Mapping[str, Any],
    warnings: list[str],
    harness: Mapping[str, Any],
) -> Plan:
    """The plan of one side as a run: the machine is shared, Python and packages are its own."""
    python = side.description["python"]
    commit = side.description.get("commit")
    own = {
        "python": {k: python[k] for k in ("version", "implementation", "compiler")},
        "packages": protocol_packages(python["installed"]),
        "lock": [f"{name}=={version}" for name, version in sorted(python["installed"].items())],
    }
    if commit is not None:
        own["commit"] = {"id": commit, "changed": bool(side.description.get("uncommitted"))}
    return Plan(
        created_at=records.now(),
        target=f"{target}-{side.name}",
        harness=harness,
        host={**host, **own},
        warnings=tuple(warnings),
        fingerprint={},
        settings=settings,
        cases=tuple(case.on(side.name) for case in cases),
    )


def require_same_sides(plan: Mapping[str, Any], sides: tuple[Side, Side]) -> None:
    """Refuse to add samples of other code or other packages to an interrupted gate."""
    for side in sides:
        then, now = plan["sides"][side.name], to_json(side.description)
        for part in ("commit", "uncommitted", "python"):
            if then.get(part) != now.get(part):
                raise FirstlightError(
                    f"{side.name} is not what it was when this gate began ({part} differs). "
                    "Samples of two experiments do not belong together: start a new gate."
                )
