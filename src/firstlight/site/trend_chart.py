"""Draws a trend: every run as a dot with its interval, levels between steps, numbered steps.

There are two charts. By time, twelve runs in five minutes merge into one stroke of a year; so there
is one by run, too, with equal distances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

from firstlight.compare.verdicts import change
from firstlight.present import quantities, svg
from firstlight.present.palette import Mark
from firstlight.present.svg import Linear, Logarithmic, element, line, number, text, text_width
from firstlight.site.trends import Curve, Point
from firstlight.statistics.intervals import median

WIDE, NARROW = 1040.0, 340.0
_HEIGHT, _TOP, _BOTTOM = 240.0, 22.0, 24.0
_MINUTE, _DAY = 60, 86400
_STEP_SIZE = 13.0  # font size to compute widths of step names: 11.5 pixels, but bold
_TICK_ROOM = 62.0  # at least, between the names of two runs
_TICKS = (
    *(_MINUTE * minutes for minutes in (1, 5, 15, 60, 180, 360, 720)),
    *(_DAY * days for days in (1, 2, 7, 14, 30, 91, 182, 365, 730, 1826, 3652)),
)
#: With more points than this, dots are one path instead of links.
_MAX_LINKS = 400
Scale = Linear | Logarithmic


@dataclass(frozen=True)
class _Axis:
    """The horizontal positions of points and tick labels."""

    start: float
    end: float
    places: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]  # (position, label)


def draw(curve: Curve, mark: Mark, label: str, up: str) -> str:
    """The charts by run and by time, each for wide and narrow screens.

    `up` is the relative path to the root of the site. CSS decides which chart is visible.
    """
    return "".join(
        f'<div class="by-{name}">'
        + "".join(_drawn(curve, mark, f"{label}, by {name}", up, w, axis) for w in (WIDE, NARROW))
        + "</div>"
        for name, axis in (("run", _by_run), ("time", _by_time))
    )


def _drawn(
    curve: Curve,
    mark: Mark,
    label: str,
    up: str,
    width: float,
    axis: Callable[[Sequence[Point], float, float], _Axis],
) -> str:
    points = curve.points
    vertical = _vertical(points)
    labels = _value_labels(vertical)
    left = max(text_width(shown, 11) for _, shown in labels) + 10
    x = axis(points, left + 8, width - 10)
    heights = [vertical(p.median) for p in points]
    body = "".join(
        line(left, vertical(value), width, vertical(value), "grid")
        + text(left - 6, vertical(value) + 4, shown, "tick", "end")
        for value, shown in labels
    )
    body += _below(x)
    body += element(
        "g",
        svg.polyline(list(zip(x.places, heights, strict=True)), "joined"),
        _whiskers(points, x, vertical),
        _levels(curve, x, vertical),
        _dots(points, x, heights, up, links=width > 400),
        class_=mark.class_,
    )
    body += _step_marks(curve, x)
    # role="group", because an image with a name would hide the links on the dots. Keyboards and
    # screen readers get the same links from the table below.
    class_ = "narrow" if width < 400 else "wide"
    return svg.canvas(
        width, _HEIGHT, label, f'<g aria-hidden="true">{body}</g>', class_, role="group"
    )


def _vertical(points: Sequence[Point]) -> Scale:
    low = min(min(p.low, p.median) for p in points)
    high = max(max(p.high, p.median) for p in points)
    bottom, top = _HEIGHT - _BOTTOM, _TOP
    if low > 0 and high > 5 * low:
        return Logarithmic(low / 1.1, high * 1.1, bottom, top)
    # The axis spans at least a fifth of the value, so that noise of 1 % does not look large.
    middle = (low + high) / 2
    half = max((high - low) * 0.55, 0.1 * middle)
    return Linear(max(0.0, middle - half), middle + half, bottom, top)


def _value_labels(scale: Scale) -> list[tuple[float, str]]:
    ticks = scale.ticks(5)
    if isinstance(scale, Logarithmic):
        return [(tick, quantities.tick_seconds(tick)) for tick in ticks]
    shown = quantities.axis_labels(scale.high, ticks, quantities.TIME_UNITS)
    return list(zip(ticks, shown, strict=True))


def _by_time(points: Sequence[Point], start: float, end: float) -> _Axis:
    first, last = points[0].moment, points[-1].moment
    if last - first < _MINUTE:  # a single run is in the middle of its day
        first, last = first - _DAY / 2, last + _DAY / 2
    scale = Linear(first, last, start, end)
    max_ticks = max(2, int((end - start) / 85))
    step = next((t for t in _TICKS if (last - first) / t <= max_ticks), _TICKS[-1])
    begin = -(-first // step) * step
    moments = [begin + i * step for i in range(int((last - begin) // step) + 1)]
    pattern = "%d %b %H:%M" if step < _DAY else "%Y-%m-%d"
    ticks = tuple(
        (scale(tick), datetime.fromtimestamp(tick, UTC).strftime(pattern))
        for tick in moments or [(first + last) / 2]
    )
    return _Axis(start, end, tuple(scale(p.moment) for p in points), ticks)


def _by_run(points: Sequence[Point], start: float, end: float) -> _Axis:
    """Runs at equal distances, labelled with their commit, or their number if it is unknown."""
    scale = Linear(-0.5, len(points) - 0.5, start, end)
    names = [short_commit(p) or f"run {i}" for i, p in enumerate(points, start=1)]
    ticks: list[tuple[float, str]] = []
    for i, name in enumerate(names):
        again = i > 0 and name == names[i - 1]
        if not again and (not ticks or scale(i) - ticks[-1][0] >= _TICK_ROOM):
            ticks.append((scale(i), name))
    return _Axis(start, end, tuple(scale(i) for i in range(len(points))), tuple(ticks))


def short_commit(point: Point) -> str | None:
    """The first digits of the commit of a run, if recorded."""
    return point.versions.get("commit", "")[:7] or None


def _below(x: _Axis) -> str:
    parts = []
    for place, shown in x.ticks:
        half = text_width(shown, 11) / 2
        inside = min(max(place, x.start - 8 + half), x.end + 8 - half)
        parts.append(line(place, _TOP, place, _HEIGHT - _BOTTOM, "grid"))
        parts.append(text(inside, _HEIGHT - 8, shown, "tick", "middle"))
    return "".join(parts)


def _whiskers(points: Sequence[Point], x: _Axis, y: Scale) -> str:
    strokes = "".join(
        f"M{number(place)} {number(y(p.low))}V{number(y(p.high))}"
        for place, p in zip(x.places, points, strict=True)
        if p.low > 0
    )
    return f'<path d="{strokes}" class="spread"/>' if strokes else ""


def _levels(curve: Curve, x: _Axis, y: Scale) -> str:
    """A line at the median of every stretch between steps; none if there are no steps."""
    if not curve.steps:
        return ""
    bounds = [0, *(step.index for step in curve.steps), len(curve.points)]
    parts = []
    for start, end in pairwise(bounds):
        height = y(median([p.median for p in curve.points[start:end]]))
        parts.append(line(x.places[start] - 4, height, x.places[end - 1] + 4, height, "level"))
    return "".join(parts)


def _dots(points: Sequence[Point], x: _Axis, heights: Sequence[float], up: str, links: bool) -> str:
    places = list(zip(x.places, heights, strict=True))
    if not links or len(points) > _MAX_LINKS:
        strokes = "".join(f"M{number(left)} {number(top)}h0" for left, top in places)
        return f'<path d="{strokes}" class="points"/>'
    dots = []
    for p, (left, top) in zip(points, places, strict=True):
        commit = f", commit {short_commit(p)}" if short_commit(p) else ""
        tip = f"{day(p.moment)}{commit}: {quantities.seconds(p.median)}, {p.processes} processes"
        place = f'cx="{number(left)}" cy="{number(top)}"'
        # Not in the tab order: keyboards use the table, which is quicker.
        dots.append(
            f'<a href="{escape(up)}snapshots/{escape(p.snapshot)}/index.html" '
            f'tabindex="-1"><circle {place} r="3.4">{svg.title(tip)}</circle></a>'
        )
    return f'<g class="dots">{"".join(dots)}</g>'


def _step_marks(curve: Curve, x: _Axis) -> str:
    parts, free = [], 0.0
    middles = [(x.places[s.index - 1] + x.places[s.index]) / 2 for s in curve.steps]
    for index, (place, step) in enumerate(zip(middles, curve.steps, strict=True), start=1):
        word = f"{index}: {change(step.effect.ratio)}"
        half = text_width(word, _STEP_SIZE) / 2
        following = middles[index] - half if index < len(middles) else x.end + 10
        if place - half < free or place + half > following:  # the list below shows the size
            word, half = str(index), text_width(str(index), _STEP_SIZE) / 2
        shown = min(max(place, x.start - 8 + half), x.end + 10 - half)
        free = shown + half + 4
        parts.append(line(place, _TOP - 4, place, _HEIGHT - _BOTTOM, "stepmark"))
        parts.append(text(shown, _TOP - 9, word, "stepname", "middle"))
    return "".join(parts)


def day(moment: float) -> str:
    """'2026-03-01 09:15 UTC'."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")
