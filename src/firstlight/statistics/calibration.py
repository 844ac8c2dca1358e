"""Calibration: thresholds from A/A runs, which measure the same program on both sides.

After K runs, the ⌈(K + 1)(1 - α)⌉-th smallest ratio is exceeded by the next A/A ratio with
probability at most α. This holds for any distribution, if the next run is exchangeable with those
before (Vovk et al., *Algorithmic Learning in a Random World*, 2005). It needs K ≥ 19 for 5 %.

Ratios below 1 are inverted (0.97 counts as 1 / 0.97), because the sides of an A/A run have no
order. The threshold thus bounds changes in both directions, with probability α for both together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.records import from_json, load_object, require_known_version, write_json

SCHEMA = "firstlight.calibration"
SCHEMA_VERSION = 1


class CalibrationError(FirstlightError):
    """A calibration file is damaged, or was made on another class of machine."""


@dataclass(frozen=True)
class AAResult:
    """The result of one A/A run for one quantity of one case."""

    case: str
    quantity: str
    ratio: float  # head / base
    rounds: int
    measured_at: str  # identifies the run


@dataclass(frozen=True)
class Threshold:
    """A ratio that an A/A comparison exceeds, in either direction, with probability at most α."""

    ratio: float
    source: str  # for people


@dataclass(frozen=True)
class Thresholds:
    """All A/A results on one class of machine: the contents of a calibration file."""

    machine_class: str
    alpha: float
    results: tuple[AAResult, ...] = ()
    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION

    def of(self, case: str, quantity: str, rounds: int) -> Threshold | None:
        """The threshold for a comparison over `rounds` rounds; None with too few A/A runs.

        The ratios of the case itself are used if there are enough of them. Otherwise those of all
        cases are pooled: α then holds for a random one of these cases, not for the noisiest. A/A
        runs of more rounds are less noisy than the comparison, so they are left out.
        """
        fitting = [r for r in self.results if r.quantity == quantity and r.rounds <= rounds]
        own = [r.ratio for r in fitting if r.case == case]
        every = [r.ratio for r in fitting]
        for ratios, words in ((own, "of this case"), (every, "of all cases")):
            found = threshold(ratios, self.alpha)
            if found is not None:
                return Threshold(found, f"{len(ratios)} A/A ratios {words}")
        return None

    def with_results(self, results: Sequence[AAResult]) -> Thresholds:
        """A copy with new results added; duplicates count once."""
        return replace(self, results=tuple(dict.fromkeys([*self.results, *results])))


def threshold(ratios: Sequence[float], alpha: float) -> float | None:
    """The ⌈(K + 1)(1 - α)⌉-th smallest of K ratios, all taken as ≥ 1; None if K is too small."""
    if any(not math.isfinite(r) or r <= 0 for r in ratios):
        raise ValueError("A/A ratios are positive numbers")
    # 1e-9, because 20 * (1 - 0.05) rounds to more than 19.
    rank = math.ceil((len(ratios) + 1) * (1 - alpha) - 1e-9)
    if rank > len(ratios):
        return None
    return sorted(max(r, 1 / r) for r in ratios)[rank - 1]


def min_results(alpha: float) -> int:
    """The smallest number of A/A ratios that gives a threshold: 19 for 5 %."""
    return math.ceil(1 / alpha - 1 - 1e-9)


def load_thresholds(path: Path, machine_class: str | None) -> Thresholds:
    """Load a calibration; refuse it if made on another class of machine (None: any)."""
    data = load_object(path)
    if data.get("schema") != SCHEMA:
        raise CalibrationError(
            f"{path}: not a Firstlight calibration (schema {data.get('schema')!r}). "
            "Make one with `firstlight calibrate`."
        )
    require_known_version(path, data, SCHEMA_VERSION)
    try:
        found = from_json(Thresholds, data)
    except FirstlightError as error:
        raise CalibrationError(f"{path}: damaged: {error}. Calibrate again.") from None
    if not 0 < found.alpha < 1 or not all(
        math.isfinite(r.ratio) and r.ratio > 0 and r.rounds > 0 for r in found.results
    ):
        raise CalibrationError(
            f"{path}: damaged: alpha, a ratio or a number of rounds is out of range. "
            "Calibrate again."
        )
    if machine_class not in (None, found.machine_class):
        raise CalibrationError(
            f"{path}: calibrated on {found.machine_class!r}, this is {machine_class!r}. Noise "
            "differs by machine: calibrate here with `firstlight calibrate`, or leave the file out."
        )
    return found


def save_thresholds(path: Path, thresholds: Thresholds) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, thresholds, schema="calibration-1.schema.json")
