"""Plans a gate: from the request to sides, cases, control, sampling, rules and thresholds."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.compare.conditions import machine_class
from firstlight.compare.quantities import GATED, QUANTITIES
from firstlight.compare.verdicts import MINIMUM_EFFECT
from firstlight.gate.decision import LOOKS, Look, Rules
from firstlight.gate.interpreters import SetupError
from firstlight.gate.outputs import CaseLine
from firstlight.gate.selection import (
    CONTROL,
    Selection,
    control_case,
    file_on,
    function_lines,
    path_in_repository,
    select_cases,
)
from firstlight.gate.sides import Side, describe_side, from_environments, from_revisions
from firstlight.measure.case_selection import SAMPLING, SelectionError, suggestion
from firstlight.measure.host import describe_host
from firstlight.records import JsonObject, Settings, from_json, slug
from firstlight.statistics.calibration import Thresholds, load_thresholds
from firstlight.statistics.effects import fewest_values


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of a gate, named as on the command line; stored in its plan."""

    target: str | None = None
    base: str | None = None
    head: str | None = None
    setup: str | None = None
    python: str | None = None
    bench_from: str | None = None
    base_env: str | None = None
    head_env: str | None = None
    pattern: str | None = None
    backend: tuple[str, ...] | None = None
    cache: tuple[str, ...] | None = None
    affinity: tuple[int, ...] | None = None
    timeout: float | None = None
    warm_seconds: float | None = None
    seed: int | None = None  # of the order
    rounds: int | None = None  # None: until a look decides
    keep_going: bool = False
    alpha: float = 0.05
    minimum_effect: float | None = None
    gate_on: tuple[str, ...] | None = None
    no_counts: bool = False
    control: str | None = None  # a case; "none": no control; None: the default
    calibration: str | None = None
    no_calibration: bool = False

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Request:
        """A request from parsed arguments; a seed is drawn unless given."""
        found = from_json(cls, json.loads(json.dumps(options, default=str)))
        return found if found.seed is not None else replace(found, seed=secrets.randbelow(2**31))


@dataclass(frozen=True)
class Gate:
    """What a gate measures, and how it judges."""

    request: Request
    sides: tuple[Side, Side]
    selection: Selection
    settings: Settings
    rules: Rules
    places: Mapping[str, CaseLine]  # where each case is defined
    host: JsonObject

    @property
    def name(self) -> str:
        return Path(self.request.target or "quick").stem

    @property
    def side_descriptions(self) -> dict[str, str]:
        return {side.name: describe_side(side) for side in self.sides}


def sides_of(request: Request) -> AbstractContextManager[tuple[Side, Side]]:
    """The two sides of a request."""
    if request.base_env or request.head_env:
        if not (request.base_env and request.head_env) or request.base or request.head:
            raise SetupError("give both --base-env and --head-env, and no revisions with them.")
        if request.setup or request.python or request.bench_from:
            raise SetupError("--setup, --python and --bench-from apply only to revisions.")
        return from_environments(Path(request.base_env), Path(request.head_env))
    if not request.base:
        raise SetupError(
            "nothing to compare with. Give --base REV (and --head REV), or --base-env ENV and "
            "--head-env ENV."
        )
    shared = None
    if request.bench_from:
        if not (request.target or "").endswith(".py"):
            raise SetupError("--bench-from needs a FILE.py.")
        shared = (request.bench_from, path_in_repository(Path(request.target or "")))
    head = request.head or "."
    return from_revisions(Path.cwd(), request.base, head, request.setup, request.python, shared)


def plan_gate(request: Request, sides: tuple[Side, Side], ratios_only: bool = False) -> Gate:
    """Decide everything that precedes the first process; `ratios_only`: no verdict is needed."""
    target, gated = request.target or "quick", request.gate_on or GATED
    for name in gated:
        if name not in QUANTITIES:  # otherwise a typing error would gate nothing, and pass
            meant = suggestion(name, QUANTITIES)
            raise SelectionError(f"--gate-on {name!r} is not a quantity.{meant}")
    chosen = select_cases(target, sides, request.backend, request.cache, request.pattern)
    selection, control = _with_control(chosen, request.control)
    if request.rounds is not None and not ratios_only:
        comparisons = _max_comparisons(selection, control, gated)
        require_decidable(request.rounds, comparisons, request.alpha)
    host = describe_host(watch_seconds=0.5)
    looks = looks_for(request.alpha, request.rounds)
    usual = SAMPLING["gate"]
    return Gate(
        request,
        sides,
        selection,
        replace(
            usual,
            processes=looks[-1].rounds,
            seed=request.seed or 0,
            affinity=request.affinity,
            timeout_seconds=request.timeout or usual.timeout_seconds,
            warm_seconds=request.warm_seconds or usual.warm_seconds,
        ),
        Rules(
            looks=looks,
            minimum_effect=request.minimum_effect or MINIMUM_EFFECT,
            gated=gated,
            thresholds=_thresholds(request, machine_class(host)),
            control=control,
            exact_counts=not request.no_counts,
            fail_fast=not request.keep_going,
            same_jax=len({s.description["python"]["installed"].get("jax") for s in sides}) == 1,
        ),
        _places(target, sides[1], selection),
        host,
    )


def looks_for(alpha: float, rounds: int | None) -> tuple[Look, ...]:
    """The looks of a gate with error rate `alpha`: one after `rounds`, or the default ones."""
    if rounds is not None:
        return (Look(rounds, alpha),)
    total = sum(look.alpha for look in LOOKS)
    return tuple(Look(look.rounds, alpha * look.alpha / total) for look in LOOKS)


def _with_control(selection: Selection, asked: str | None) -> tuple[Selection, str | None]:
    if asked is None:
        return replace(selection, cases=(*selection.cases, control_case())), CONTROL
    if asked == "none":
        return selection, None
    names = [pair.id for pair in selection.cases]
    if asked not in names:
        raise SelectionError(f"--control {asked!r} is not one of: {', '.join(names)}.")
    if len(names) == 1:
        raise SelectionError(f"--control {asked!r} is the only case: nothing is left to gate.")
    return selection, asked


def _max_comparisons(selection: Selection, control: str | None, gated: Sequence[str]) -> int:
    """An upper bound of the number of decisive times; short phases will not be decisive."""
    return sum(
        pair.id != control and (pair.head.compiled or name not in ("trace", "lower", "compile"))
        for pair in selection.cases
        for name in gated
    )


def require_decidable(rounds: int, comparisons: int, alpha: float) -> None:
    """Refuse too few rounds for any time to be significantly slower.

    The smallest p-value of N rounds is 2 / 2^N, and Holm's correction multiplies it.
    """
    minimum = max(6, fewest_values(comparisons, alpha, paired=True))  # six for an interval of 95 %
    if rounds < minimum:
        raise SelectionError(
            f"--rounds {rounds}: with so few rounds, none of {comparisons} times could be "
            f"significantly slower at an error rate of {alpha:g}, so no time could fail the gate. "
            f"At least {minimum} are needed: --rounds {minimum}, or leave it out."
        )


def calibration_path(machine: str) -> Path:
    """The user's calibration file for a machine class, below $XDG_DATA_HOME/firstlight."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "firstlight" / "calibration" / f"{slug(machine)}.json"


def _thresholds(request: Request, machine: str) -> Thresholds | None:
    """The requested calibration, else that of this machine class, else none."""
    if request.no_calibration:
        return None
    if request.calibration is not None:
        return load_thresholds(Path(request.calibration), machine)
    path = calibration_path(machine)
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
