"""The directory of a gate. Each side is a run directory, which `show` and `compare` can read.

plan.json     the request, both sides, the seed: written before the first process
base/ head/   plan.json, samples.jsonl, run.json, report.html, as `firstlight run` writes them
gate.json     the verdict with all it is based on
gate.md       the same for a pull request
explain/      with --explain: programs of failing cases and their differences
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.gate.decision import Look
from firstlight.gate.measuring import SIDES, complete_rounds
from firstlight.gate.planning import Gate, Request
from firstlight.gate.sides import Side
from firstlight.measure.host import harness, noise_warnings, software
from firstlight.records import (
    JsonObject,
    OutputError,
    Plan,
    Run,
    Sample,
    from_json,
    load_object,
    now,
    to_json,
    write_json,
    writing,
)
from firstlight.records.run_directory import RunDirectory, require_new
from firstlight.report.html import render
from firstlight.statistics.run_summaries import assemble

SCHEMA = "firstlight.gate-plan"


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """The `plan.json` of a gate: the request and what follows from it, in the order of the file."""

    schema: str = SCHEMA
    schema_version: int = 1
    created_at: str
    options: Request
    sides: Mapping[str, JsonObject]
    looks: tuple[Look, ...]
    control: str | None
    cases: tuple[str, ...]
    skipped: Mapping[str, str]
    incomparable: Mapping[str, str]
    new: tuple[str, ...]
    harness: JsonObject

    @classmethod
    def of(cls, gate: Gate) -> GatePlan:
        # Commits instead of branches, which may move before the gate is resumed.
        fixed: JsonObject = {
            side.name: side.description["commit"]
            for side in gate.sides
            if side.description["kind"] == "revision" and not side.description["uncommitted"]
        }
        return cls(
            created_at=now(),
            options=replace(gate.request, **fixed),
            sides={side.name: side.description for side in gate.sides},
            looks=gate.rules.looks,
            control=gate.rules.control,
            cases=tuple(pair.id for pair in gate.selection.cases),
            skipped=gate.selection.skipped,
            incomparable=gate.selection.incomparable,
            new=gate.selection.new,
            harness=harness(),
        )

    @classmethod
    def load(cls, path: Path) -> GatePlan:
        data = load_object(path / "plan.json")
        if data.get("schema") != SCHEMA:
            raise OutputError(f"{path}: not a gate's directory (schema {data.get('schema')!r}).")
        return from_json(cls, data, str(path / "plan.json"))

    def require_same(self, sides: tuple[Side, Side]) -> None:
        """Refuse to resume with other code or other packages."""
        for side in sides:
            then, now = self.sides[side.name], to_json(side.description)
            for part in ("commit", "uncommitted", "python"):
                if then.get(part) != now.get(part):
                    raise FirstlightError(
                        f"{side.name} is not what it was when this gate began ({part} differs). "
                        "Samples of two experiments do not belong together: start a new gate."
                    )


class GateDirectory:
    """A gate's directory, locked by one process at a time."""

    def __init__(self, path: Path, sides: Mapping[str, RunDirectory]) -> None:
        self.path = path
        self._sides = dict(sides)

    @classmethod
    def create(cls, path: Path, plan: GatePlan, gate: Gate) -> GateDirectory:
        require_new(path, "gate")
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "plan.json", plan)
        sides = {
            s.name: RunDirectory.create(path / s.name, _side_plan(s, gate)) for s in gate.sides
        }
        return cls(path, sides)

    @classmethod
    def open(cls, path: Path) -> GateDirectory:
        """Open an interrupted gate to resume it."""
        return cls(path, {name: RunDirectory.open(path / name) for name in SIDES})

    def keepers(self) -> dict[str, Callable[[Sample], None]]:
        return {name: directory.keep for name, directory in self._sides.items()}

    def samples(self) -> dict[str, list[Sample]]:
        return {name: directory.samples() for name, directory in self._sides.items()}

    def runs(
        self, samples: Mapping[str, list[Sample]], load_after: Sequence[float] | None = None
    ) -> dict[str, Run]:
        """The summaries of both sides over the complete rounds."""
        plans = self._plans(samples)
        return {
            name: assemble(directory.path, plans[name], samples[name], load_after)
            for name, directory in self._sides.items()
        }

    def _plans(self, samples: Mapping[str, list[Sample]]) -> dict[str, Plan]:
        """Each side's plan with the number of rounds that were measured."""
        rounds = max(1, complete_rounds(samples))  # 1 if none, so that the run is incomplete
        plans = {name: directory.plan() for name, directory in self._sides.items()}
        return {
            name: replace(plan, settings=replace(plan.settings, processes=rounds))
            for name, plan in plans.items()
        }

    def publish_sides(self, load_after: Sequence[float] | None = None) -> None:
        """Write both sides' summaries and reports, and the actual number of rounds in their plans.

        The number is not known beforehand. `publish` would refuse a run of 12 rounds with a plan of
        96. A resumed gate computes its settings again.
        """
        samples = self.samples()
        plans = self._plans(samples)
        for name, run in self.runs(samples, load_after).items():
            path = self._sides[name].path / "plan.json"
            with writing(path):
                write_json(path, plans[name])
            self._sides[name].publish(run, render(run, samples[name]))

    def close(self) -> None:
        for directory in self._sides.values():
            with contextlib.suppress(OSError):
                directory.close()


def _side_plan(side: Side, gate: Gate) -> Plan:
    """One side as the plan of a run, with the gate's machine and the side's Python and packages."""
    python, commit = side.description["python"], side.description.get("commit")
    own = {
        "python": {k: python[k] for k in ("version", "implementation", "compiler")},
        **software(python["installed"]),
    }
    if commit is not None:
        own["commit"] = {"id": commit, "changed": bool(side.description.get("uncommitted"))}
    return Plan(
        created_at=now(),
        target=f"{gate.name}-{side.name}",
        harness=harness(),
        host={**gate.host, **own},
        warnings=tuple(noise_warnings(gate.host)),
        fingerprint={},
        settings=gate.settings,
        cases=tuple(case.on(side.name) for case in gate.selection.cases),
    )
