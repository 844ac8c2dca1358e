"""A/A gates: the same side twice, to learn how far apart equal things come out on this machine.

Every ratio comes from a whole gate of its own: fresh scratch space, fresh caches, fresh order.
Cutting one long recording into pieces, or drawing rounds from it anew, would be quicker, and would
miss what is the same within a job and different in the next; that is what a threshold is for.
"""

from __future__ import annotations

import os
from pathlib import Path

from firstlight.errors import FirstlightError
from firstlight.gate.decision import GateReport
from firstlight.records import slug
from firstlight.statistics.calibration import AAResult


class UnfinishedGateError(FirstlightError):
    """An A/A gate did not come to its end, so that its ratios mean something else."""


def default_path(machine: str) -> Path:
    """Where this machine class's calibration is kept for the user: $XDG_DATA_HOME/firstlight."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "firstlight" / "calibration" / f"{slug(machine)}.json"


def require_whole(report: GateReport, rounds: int) -> None:
    """Refuse the ratios of a gate that has broken cases or fewer rounds than asked for."""
    for case, why in report.broken.items():
        raise UnfinishedGateError(f"{case} cannot be calibrated: {why}.")
    if report.rounds < rounds:
        raise UnfinishedGateError(f"the gate ended after {report.rounds} of {rounds} rounds.")


def ratios(report: GateReport, measured_at: str) -> list[AAResult]:
    """What one A/A gate gave: a ratio for each quantity of each case."""
    return [
        AAResult(c.case, c.quantity, c.effect.ratio, c.effect.n, measured_at)
        for c in report.comparisons
    ]
