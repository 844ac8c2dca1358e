"""From what is asked for to what is done: cases, control, sampling, rules and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firstlight.compare.conditions import machine_class
from firstlight.compare.quantities import GATED, QUANTITIES
from firstlight.compare.verdicts import MINIMUM_EFFECT
from firstlight.gate.calibrating import default_path
from firstlight.gate.job import Rules, looks_for
from firstlight.gate.outputs import CaseLine
from firstlight.gate.selection import (
    CONTROL,
    Selection,
    Wanted,
    choose,
    control_case,
    file_on,
    function_lines,
    path_in_repository,
)
from firstlight.gate.sides import Side, in_words
from firstlight.measure.case_selection import SAMPLING, SelectionError, nearest
from firstlight.measure.host import describe_host
from firstlight.records import Settings
from firstlight.statistics.calibration import Thresholds, load_thresholds


@dataclass(frozen=True)
class Request:
    """What a gate is asked for, apart from its sides."""

    wanted: Wanted
    seed: int  # of the order
    rounds: int | None = None  # None: looks, until everything is decided
    alpha: float = 0.05
    minimum_effect: float = MINIMUM_EFFECT
    gate_on: tuple[str, ...] = GATED
    exact_counts: bool = True
    fail_fast: bool = True
    control: str | None = None  # a case; "none": no control; None: the usual one
    calibration: Path | None = None
    use_calibration: bool = True
    timeout_seconds: float | None = None
    warm_seconds: float | None = None
    affinity: tuple[int, ...] | None = None
    ratios_only: bool = False  # for a calibration, which asks for no verdict


@dataclass(frozen=True)
class Gate:
    """What one gate measures, and how it judges."""

    sides: tuple[Side, Side]
    selection: Selection
    settings: Settings
    rules: Rules
    places: Mapping[str, CaseLine]  # where each case is written
    target: str
    host: Mapping[str, Any]

    @property
    def side_words(self) -> dict[str, str]:
        return {side.name: in_words(side) for side in self.sides}


def plan_gate(request: Request, sides: tuple[Side, Side]) -> Gate:
    """Everything that is decided before the first process."""
    for name in request.gate_on:
        if name not in QUANTITIES:  # a typing error would gate nothing, and pass
            raise SelectionError(f"--gate-on {name!r} is no quantity.{nearest(name, QUANTITIES)}")
    selection, control = _with_control(choose(request.wanted, sides), request.control)
    if request.rounds is not None and not request.ratios_only:
        comparisons = _most_comparisons(selection, control, request.gate_on)
        require_decidable(request.rounds, comparisons, request.alpha)
    host = describe_host(watch_seconds=0.5)
    looks = looks_for(request.alpha, request.rounds)
    rules = Rules(
        looks=looks,
        minimum_effect=request.minimum_effect,
        gated=request.gate_on,
        thresholds=_thresholds(request, host),
        control=control,
        exact_counts=request.exact_counts,
        fail_fast=request.fail_fast,
        same_jax=len({side.description["python"]["installed"].get("jax") for side in sides}) == 1,
    )
    settings = replace(
        SAMPLING["gate"],
        processes=looks[-1].rounds,
        seed=request.seed,
        affinity=request.affinity,
        timeout_seconds=request.timeout_seconds or SAMPLING["gate"].timeout_seconds,
        warm_seconds=request.warm_seconds or SAMPLING["gate"].warm_seconds,
    )
    target = request.wanted.target
    places = _places(target, sides[1], selection)
    return Gate(sides, selection, settings, rules, places, target, host)


def _with_control(selection: Selection, asked: str | None) -> tuple[Selection, str | None]:
    if asked is None:
        return replace(selection, cases=(*selection.cases, control_case())), CONTROL
    if asked == "none":
        return selection, None
    names = [pair.id for pair in selection.cases]
    if asked not in names:
        raise SelectionError(f"--control {asked!r} is none of: {', '.join(names)}.")
    if len(names) == 1:
        raise SelectionError(f"--control {asked!r} is the only case: nothing is left to gate.")
    return selection, asked


def _most_comparisons(selection: Selection, control: str | None, gated: Sequence[str]) -> int:
    """How many times decide at most; whether a phase is long enough to, the rounds will show."""
    return sum(
        1
        for pair in selection.cases
        for name in gated
        if pair.id != control and (pair.head.compiled or name not in ("trace", "lower", "compile"))
    )


def require_decidable(rounds: int, comparisons: int, alpha: float) -> None:
    """Refuse so few rounds that no time could ever be called slower.

    The smallest p-value of N rounds is 2 / 2^N, and Holm's correction multiplies it.
    """
    least = 6  # for an interval of 95 %
    while 2 * comparisons / 2**least >= alpha:
        least += 1
    if rounds < least:
        raise SelectionError(
            f"--rounds {rounds}: so few rounds can never call one of {comparisons} times slower "
            f"with an error rate of {alpha:g}, so no time could fail the gate. At least {least} "
            f"are needed: --rounds {least}, or leave it out."
        )


def _thresholds(request: Request, host: Mapping[str, Any]) -> Thresholds | None:
    """The calibration that was named, else this machine's own, else none."""
    if not request.use_calibration:
        return None
    machine = machine_class(host)
    if request.calibration is not None:
        return load_thresholds(request.calibration, machine)
    path = default_path(machine)
    return load_thresholds(path, machine) if path.exists() else None


def _places(target: str, head: Side, selection: Selection) -> dict[str, CaseLine]:
    if not target.endswith(".py"):
        return {}
    lines = function_lines(file_on(head, Path(target)))
    shown = target if head.file_root is None else path_in_repository(Path(target)).as_posix()
    return {
        pair.id: CaseLine(shown, lines[pair.head.program])
        for pair in selection.cases
        if pair.head.program in lines
    }
