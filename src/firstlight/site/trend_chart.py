"""A trend drawn: every run as a dot with its interval, levels between steps, steps by number."""

from __future__ import annotations

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from firstlight.gate.comparison import change
from firstlight.report import quantities
from firstlight.report.palette import Mark
from firstlight.report.svg import (
    Linear,
    Logarithmic,
    canvas,
    element,
    line,
    number,
    polyline,
    text,
    text_width,
)
from firstlight.report.svg import title as tooltip
from firstlight.site.trends import Curve, Point
from firstlight.statistics.intervals import median

WIDE, NARROW = 1040.0, 340.0
_HEIGHT, _TOP, _BOTTOM = 240.0, 22.0, 24.0
_HOUR, _DAY = 3600, 86400
_TICKS = (
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY * days for days in (1, 2, 7, 14, 30, 91, 182, 365, 730, 1826, 3652)),
)
#: With more points than this, dots are one path: a page of thousands of links serves nobody.
_MOST_LINKS = 400
Scale = Linear | Logarithmic


def draw(curve: Curve, mark: Mark, label: str, up: str) -> str:
    """The chart for a desk and for a phone; `up` is the way to the root of the site."""
    return _drawn(curve, mark, label, up, WIDE) + _drawn(curve, mark, label, up, NARROW)


def _drawn(curve: Curve, mark: Mark, label: str, up: str, width: float) -> str:
    points = curve.points
    vertical = _vertical(points)
    labels = _value_labels(vertical)
    left = max(text_width(shown, 11) for _, shown in labels) + 10
    horizontal = _horizontal(points, left + 8, width - 10)
    body = "".join(
        line(left, vertical(value), width, vertical(value), "grid")
        + text(left - 6, vertical(value) + 4, shown, "tick", "end")
        for value, shown in labels
    )
    body += _dates(horizontal)
    body += element(
        "g",
        polyline([(horizontal(p.moment), vertical(p.median)) for p in points], "joined"),
        _whiskers(points, horizontal, vertical),
        _levels(curve, horizontal, vertical),
        _dots(points, horizontal, vertical, up, links=width > 400),
        class_=mark.class_,
    )
    body += _step_marks(curve, horizontal)
    return canvas(width, _HEIGHT, label, body, "narrow" if width < 400 else "wide")


def _vertical(points: Sequence[Point]) -> Scale:
    low = min(min(p.low, p.median) for p in points)
    high = max(max(p.high, p.median) for p in points)
    bottom, top = _HEIGHT - _BOTTOM, _TOP
    if low > 0 and high > 5 * low:
        return Logarithmic(low / 1.1, high * 1.1, bottom, top)
    # At least a fifth from bottom to top: noise of a hundredth must not look like mountains.
    middle = (low + high) / 2
    half = max((high - low) * 0.55, 0.1 * middle)
    return Linear(max(0.0, middle - half), middle + half, bottom, top)


def _value_labels(scale: Scale) -> list[tuple[float, str]]:
    ticks = scale.ticks(5)
    if isinstance(scale, Logarithmic):
        return [(tick, quantities.tick_seconds(tick)) for tick in ticks]
    shown = quantities.axis_labels(scale.high, ticks, quantities.TIME_UNITS)
    return list(zip(ticks, shown, strict=True))


def _horizontal(points: Sequence[Point], start: float, end: float) -> Linear:
    first, last = points[0].moment, points[-1].moment
    if last - first < _HOUR:  # a single run stands in the middle of its day
        first, last = first - _DAY / 2, last + _DAY / 2
    return Linear(first, last, start, end)


def _dates(scale: Linear) -> str:
    most = max(2, int((scale.end - scale.start) / 85))
    span = scale.high - scale.low
    step = next((t for t in _TICKS if span / t <= most), _TICKS[-1])
    first = -(-scale.low // step) * step
    ticks = [first + i * step for i in range(int((scale.high - first) // step) + 1)]
    pattern = "%d %b %H:%M" if step < _DAY else "%Y-%m-%d"
    parts = []
    for tick in ticks or [(scale.low + scale.high) / 2]:
        shown = datetime.fromtimestamp(tick, UTC).strftime(pattern)
        half = text_width(shown, 11) / 2
        x = min(max(scale(tick), scale.start - 8 + half), scale.end + 8 - half)
        parts.append(line(scale(tick), _TOP, scale(tick), _HEIGHT - _BOTTOM, "grid"))
        parts.append(text(x, _HEIGHT - 8, shown, "tick", "middle"))
    return "".join(parts)


def _whiskers(points: Sequence[Point], x: Linear, y: Scale) -> str:
    strokes = "".join(
        f"M{number(x(p.moment))} {number(y(p.low))}V{number(y(p.high))}"
        for p in points
        if p.low > 0
    )
    return f'<path d="{strokes}" class="spread"/>' if strokes else ""


def _levels(curve: Curve, x: Linear, y: Scale) -> str:
    """The median of every stretch between steps; a single stretch needs no line."""
    if not curve.steps:
        return ""
    bounds = [0, *(step.index for step in curve.steps), len(curve.points)]
    parts = []
    for start, end in pairwise(bounds):
        own = curve.points[start:end]
        height = y(median([p.median for p in own]))
        parts.append(line(x(own[0].moment) - 4, height, x(own[-1].moment) + 4, height, "level"))
    return "".join(parts)


def _dots(points: Sequence[Point], x: Linear, y: Scale, up: str, links: bool) -> str:
    if not links or len(points) > _MOST_LINKS:
        strokes = "".join(f"M{number(x(p.moment))} {number(y(p.median))}h0" for p in points)
        return f'<path d="{strokes}" class="points"/>'
    dots = []
    for p in points:
        tip = tooltip(f"{day(p.moment)}: {quantities.seconds(p.median)}, {p.processes} processes")
        place = f'cx="{number(x(p.moment))}" cy="{number(y(p.median))}"'
        # A pointer may press a dot; for the keyboard there is the table, which is quicker.
        dots.append(
            f'<a href="{html.escape(up)}snapshots/{html.escape(p.snapshot)}/index.html" '
            f'tabindex="-1"><circle {place} r="3.4">{tip}</circle></a>'
        )
    return f'<g class="dots">{"".join(dots)}</g>'


def _step_marks(curve: Curve, x: Linear) -> str:
    parts = []
    for index, step in enumerate(curve.steps, start=1):
        before, after = curve.points[step.index - 1], curve.points[step.index]
        place = (x(before.moment) + x(after.moment)) / 2
        word = f"{index}: {change(step.effect.ratio)}"
        half = text_width(word, 11.5) / 2
        shown = min(max(place, x.start - 8 + half), x.end + 10 - half)
        parts.append(line(place, _TOP - 4, place, _HEIGHT - _BOTTOM, "stepmark"))
        parts.append(text(shown, _TOP - 9, word, "stepname", "middle"))
    return "".join(parts)


def day(moment: float) -> str:
    """'2026-03-01 09:15 UTC'."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")
