"""Selects the cases that both sides have, and tells which cannot be compared."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firstlight.gate.measuring import PairedCase
from firstlight.gate.sides import Side
from firstlight.gate.worktrees import repository_root
from firstlight.measure import case_selection, user_file
from firstlight.measure.case_selection import SelectionError
from firstlight.measure.process import Outcome
from firstlight.records import Case
from firstlight.workloads.catalog import registered

#: The default control: element-wise NumPy under the gate's own Python. No revision or environment
#: under test can affect it, so if it moves, the machine is the cause. It uses one thread, because a
#: matrix product waits for the busiest core and would be too noisy.
CONTROL = "control/numpy/none"
#: Fields of a case that must be equal on both sides.
_COMPARED = ("parameters", "environment", "seed", "adapter")


@dataclass(frozen=True)
class Selection:
    """The cases of a gate, and those left out."""

    cases: tuple[PairedCase, ...]
    skipped: Mapping[str, str]  # by case: why it cannot run on these sides
    incomparable: Mapping[str, str]  # by case: how its two sides differ
    new: tuple[str, ...]  # only in head
    unimportable: Mapping[str, str] = field(default_factory=dict)  # by side: where and why


def select_cases(
    target: str,
    sides: tuple[Side, Side],
    wanted: Sequence[str] | None = None,
    caches: Sequence[str] | None = None,
    pattern: str | None = None,
) -> Selection:
    """The cases that both sides have, in the order of the catalogue or of the file."""
    backends, workloads = registered()
    named = case_selection.resolve_backends(wanted, backends)
    found: dict[str, Sequence[Case]] = {}
    broken: dict[str, str] = {}
    for side in sides:
        if not target.endswith(".py"):
            cases = case_selection.select(target, workloads, backends, named, caches)
            found[side.name] = cases
            continue
        path, spawn = file_on(side, Path(target)), side.spawner()
        try:
            found[side.name] = user_file.cases_in(path, backends, named, caches, spawn)
        except user_file.UnimportableError as error:
            broken[side.name] = _import_error(error.outcome, side)
        except user_file.UserFileError as error:
            raise SelectionError(f"{side.name}: {_in_checkout(str(error), side)}") from None
    if not found:
        reasons = "".join(f"\n  {side}: {why}" for side, why in broken.items())
        raise SelectionError(f"{target} can be imported on neither side:{reasons}")
    for side in sides:
        if side.name in broken:  # its checks will fail on the import and report it
            file = str(file_on(side, Path(target)).absolute())
            found[side.name] = [replace(c, file=file) for c in next(iter(found.values()))]
    # Frameworks must be installed in the side's environment, not in the gate's.
    base, head = (
        case_selection.mark_missing(
            found[side.name], backends, side.description["python"]["modules"].__contains__
        )
        for side in sides
    )
    selection = _paired({case.id: case for case in base}, {case.id: case for case in head})
    chosen = [pair.base for pair in selection.cases]
    kept = {case.id for case in case_selection.filter_cases(chosen, pattern)}
    pairs = tuple(pair for pair in selection.cases if pair.id in kept)
    return replace(selection, cases=pairs, unimportable=broken)


def _import_error(outcome: Outcome, side: Side) -> str:
    """'lib.py, line 8: SyntaxError: …'."""
    if outcome.timed_out:
        return "importing it takes too long: move the work into the marked functions"
    last = (outcome.output_tail.strip().splitlines() or ["no output"])[-1]
    report = outcome.report
    why = str(report["exception"]) if report else f"exit code {outcome.exit_code}: {last}"
    places = re.findall(r'^ *File "([^"]+)", line (\d+)', outcome.output_tail, re.MULTILINE)
    if places:
        why = re.sub(r" \([^()]*, line \d+\)$", "", why)  # as in the message of a SyntaxError
        why = f"{places[-1][0]}, line {places[-1][1]}: {why}"
    return _in_checkout(why, side)


def _in_checkout(text: str, side: Side) -> str:
    """The text with paths relative to the checkout, which will be removed."""
    if side.file_root is None:
        return text
    return text.replace(f"{side.file_root}/", "").replace(f"{side.file_root.resolve()}/", "")


def file_on(side: Side, file: Path) -> Path:
    """The benchmark file as this side has it."""
    if side.file_root is None:
        return file
    path = side.file_root / path_in_repository(file)
    if not path.is_file():
        revision = side.description.get("revision")
        raise SelectionError(
            f"{file} does not exist in {side.name} ({revision}), so there is nothing to compare "
            "with. To use the file of one side for both: --bench-from head (or base)."
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


def _paired(base: Mapping[str, Case], head: Mapping[str, Case]) -> Selection:
    pairs, skipped, incomparable = [], {}, {}
    for name, case in base.items():
        other = head.get(name)
        if other is None:
            incomparable[name] = "head does not have this case any more"
        elif case.skipped or other.skipped:
            skipped[name] = str(case.skipped or other.skipped)
        elif changed := [f for f in _COMPARED if getattr(case, f) != getattr(other, f)]:
            are = "is" if changed == ["seed"] else "are"
            incomparable[name] = f"its {' and '.join(changed)} {are} not the same on both sides"
        else:
            pairs.append(PairedCase(case, other))
    new = tuple(name for name in head if name not in base)
    if not pairs:
        why = {**incomparable, **skipped, **dict.fromkeys(new, "only head has it")}
        reasons = "; ".join(f"{name}: {reason}" for name, reason in why.items())
        raise SelectionError(f"no case can be compared. {reasons}")
    return Selection(tuple(pairs), skipped, incomparable, new)


def control_case() -> PairedCase:
    """The default control, `CONTROL`."""
    backends, workloads = registered()
    workload = workloads["option_greeks"]
    case = case_selection.make_case(workload, "small", backends["numpy"], "none")
    case = replace(case, id=CONTROL, workload="control", title="Control: option prices in NumPy")
    return PairedCase(case, case, is_control=True)


def function_lines(path: Path) -> dict[str, int]:
    """{function: line} of a benchmark file, without running it."""
    import ast

    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    return {node.name: node.lineno for node in tree.body if isinstance(node, ast.FunctionDef)}
