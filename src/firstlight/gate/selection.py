"""Which cases both sides have, and which cannot be compared."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from firstlight.errors import FirstlightError
from firstlight.gate.measuring import PairedCase
from firstlight.gate.sides import Side
from firstlight.gate.worktrees import repository_root
from firstlight.measure import case_selection, user_file
from firstlight.measure.case_selection import SelectionError
from firstlight.measure.process import Outcome
from firstlight.records import Case
from firstlight.workloads.catalog import Backend, registered

#: Element-wise NumPy, run by the gate's own Python: no revision and no environment under test can
#: reach it, so whatever moves it is the machine. On one thread: a product of matrices would wait
#: for the busiest core, and be too noisy to control anything.
CONTROL = "control/numpy/none"
_CONTROL_WORKLOAD, _CONTROL_SIZE = "option_greeks", "small"


class UnimportableError(FirstlightError):
    """The benchmark file of a side cannot be imported."""


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for, as for `firstlight run`."""

    target: str
    backends: Sequence[str] | None = None
    caches: Sequence[str] | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class Selection:
    """The cases of both sides, and what was left out."""

    cases: tuple[PairedCase, ...]
    skipped: Mapping[str, str]  # by case: why it cannot run on these sides
    incomparable: Mapping[str, str]  # by case: why its two sides are not the same thing
    new: tuple[str, ...]  # only head has them
    unimportable: Mapping[str, str] = field(default_factory=dict)  # by side: where and why


def choose(wanted: Wanted, sides: tuple[Side, Side]) -> Selection:
    """The cases that both sides have, in the order of the catalogue or of the file."""
    backends, workloads = registered()
    named = case_selection.resolve_backends(wanted.backends, backends)
    found: dict[str, Sequence[Case]] = {}
    broken: dict[str, str] = {}
    for side in sides:
        if wanted.target.endswith(".py"):
            path = file_on(side, Path(wanted.target))
            try:
                found[side.name] = _in_file(path, backends, named, wanted.caches, side)
            except UnimportableError as error:
                broken[side.name] = str(error)
        else:
            found[side.name] = case_selection.select(
                wanted.target, workloads, backends, named, wanted.caches
            )
    if not found:
        told = "".join(f"\n  {side}: {why}" for side, why in broken.items())
        raise SelectionError(f"{wanted.target} can be imported on neither side:{told}")
    for side in sides:
        if side.name in broken:  # what it cannot import, its checks will fail on, and say so
            file = str(file_on(side, Path(wanted.target)).absolute())
            found[side.name] = [replace(c, file=file) for c in next(iter(found.values()))]
    base, head = (
        {case.id: case for case in _marked(found[side.name], backends, side)} for side in sides
    )
    selection = replace(_paired(base, head), unimportable=broken)
    return replace(selection, cases=_filtered(selection.cases, wanted.pattern))


def _in_file(
    path: Path,
    backends: Mapping[str, Backend],
    named: Sequence[str] | None,
    caches: Sequence[str] | None,
    side: Side,
) -> list[Case]:
    outcomes: list[Outcome] = []

    def spawn(*arguments: Any) -> Outcome:
        outcomes.append(side.spawner()(*arguments))
        return outcomes[-1]

    try:
        return user_file.cases_in(path, backends, named, caches, spawn=spawn)
    except user_file.UserFileError as error:
        why = _import_error(outcomes[-1], side) if outcomes else None
        if why is None:
            raise SelectionError(f"{side.name}: {_in_checkout(str(error), side)}") from None
        raise UnimportableError(why) from None


def _import_error(outcome: Outcome, side: Side) -> str | None:
    """'lib.py, line 8: SyntaxError: …'; None if the file was imported."""
    if outcome.timed_out:
        return "importing it takes too long: move the work into the marked functions"
    report = outcome.report
    if report is not None and "exception" not in report:
        return None
    lines = outcome.output_tail.strip().splitlines()
    last = (lines or ["no output"])[-1]
    why = str(report["exception"]) if report else f"exit code {outcome.exit_code}: {last}"
    places = re.findall(r'^ *File "([^"]+)", line (\d+)', outcome.output_tail, re.MULTILINE)
    if places:
        why = re.sub(r" \([^()]*, line \d+\)$", "", why)  # a SyntaxError says it itself
        why = f"{places[-1][0]}, line {places[-1][1]}: {why}"
    return _in_checkout(why, side)


def _in_checkout(text: str, side: Side) -> str:
    """Paths as they are in the repository: the checkout is gone when somebody reads this."""
    if side.file_root is None:
        return text
    roots = dict.fromkeys((str(side.file_root), str(side.file_root.resolve())))
    for root in roots:
        text = text.replace(f"{root}/", "")
    return text


def file_on(side: Side, file: Path) -> Path:
    """The benchmark file as this side has it."""
    if side.file_root is None:
        return file
    path = side.file_root / path_in_repository(file)
    if not path.is_file():
        revision = side.description.get("revision")
        raise SelectionError(
            f"{file} does not exist in {side.name} ({revision}), so there is nothing to compare "
            "with. To measure both sides with the file of one: --bench-from head (or base)."
        )
    return path


def path_in_repository(file: Path) -> Path:
    folder = Path.cwd()
    root = repository_root(folder)
    place = Path(os.path.abspath(folder / file))
    resolved = place.parent.resolve() / place.name
    if not resolved.is_relative_to(root):
        raise SelectionError(f"{file} lies outside of the repository {root}.")
    return resolved.relative_to(root)


def _marked(cases: Sequence[Case], backends: Mapping[str, Backend], side: Side) -> list[Case]:
    """Frameworks are looked for where the side runs, not where the gate does."""
    there = side.description["python"]["modules"]
    return case_selection.mark_missing(cases, backends, lambda name: name in there)


def _paired(base: Mapping[str, Case], head: Mapping[str, Case]) -> Selection:
    pairs, skipped, incomparable = [], {}, {}
    for name, case in base.items():
        other = head.get(name)
        if other is None:
            incomparable[name] = "head does not have this case any more"
        elif case.skipped or other.skipped:
            skipped[name] = str(case.skipped or other.skipped)
        elif changed := _changes(case, other):
            incomparable[name] = f"{changed} not the same on both sides"
        else:
            pairs.append(PairedCase(case, other))
    new = tuple(name for name in head if name not in base)
    if not pairs:
        why = [*(f"{n}: {r}" for n, r in {**incomparable, **skipped}.items())]
        why += [f"{name}: only head has it" for name in new]
        raise SelectionError("no case can be compared. " + "; ".join(why))
    return Selection(tuple(pairs), skipped, incomparable, new)


def _changes(base: Case, head: Case) -> str | None:
    fields = ("parameters", "environment", "seed", "adapter")
    changed = [name for name in fields if getattr(base, name) != getattr(head, name)]
    if not changed:
        return None
    return f"its {' and '.join(changed)} {'is' if changed == ['seed'] else 'are'}"


def _filtered(pairs: Sequence[PairedCase], pattern: str | None) -> tuple[PairedCase, ...]:
    kept = {case.id for case in case_selection.filter_cases([pair.base for pair in pairs], pattern)}
    return tuple(pair for pair in pairs if pair.id in kept)


def control_case() -> PairedCase:
    """The default control."""
    backends, workloads = registered()
    workload = workloads[_CONTROL_WORKLOAD]
    case = case_selection.make_case(workload, _CONTROL_SIZE, backends["numpy"], "none")
    case = replace(case, id=CONTROL, workload="control", title="Control: option prices in NumPy")
    return PairedCase(case, case, is_control=True)


def function_lines(path: Path) -> dict[str, int]:
    """{function: line} of a benchmark file, read without running it."""
    import ast

    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node.lineno for node in tree.body if isinstance(node, functions)}
