"""Intervals from a profile likelihood scan."""

from __future__ import annotations

import numpy as np

from firstlight.histfactory.model import Floats
from firstlight.histfactory.scans import Scan


def interval(scan: Scan, height: float = 1.0) -> tuple[float | None, float | None]:
    """Where 2ΔNLL reaches `height` below and above the best fit; None if the scan ends before.

    Interpolates √2ΔNLL, with the sign of the side, linearly between points: exact for a parabola.
    """
    best = float(scan.best.parameters[scan.parameter])
    good = (scan.status_code == 0) & np.isfinite(scan.twice_delta_nll)
    values = scan.values[good]
    order = np.argsort(values)
    values = values[order]
    roots = np.sqrt(np.maximum(scan.twice_delta_nll[good][order], 0.0))
    sides = (np.append(values[values < best], best)[::-1], np.append(best, values[values > best]))
    heights = (np.append(roots[values < best], 0.0)[::-1], np.append(0.0, roots[values > best]))
    lower, upper = (_crossing(v, h, height**0.5) for v, h in zip(sides, heights, strict=True))
    return lower, upper


def _crossing(values: Floats, heights: Floats, level: float) -> float | None:
    """The first point where `heights`, which begins at zero, reaches the level."""
    above = np.flatnonzero(heights >= level)
    if not len(above):
        return None
    i = int(above[0])
    share = (level - heights[i - 1]) / (heights[i] - heights[i - 1])
    return float(values[i - 1] + share * (values[i] - values[i - 1]))
