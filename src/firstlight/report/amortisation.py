"""Curves of total time against the number of calls, with the break-even of compiled cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firstlight.present import quantities, svg
from firstlight.present.svg import Logarithmic, element, line, polyline, text, text_width
from firstlight.records import CaseSummary, Estimate
from firstlight.report.admission import Workload, flag, hollow, label

_FONT = 11.5
_POINTS = 32


@dataclass(frozen=True)
class Curve:
    """The total time cold + (calls − 1) · warm; its ends use the same ends of both intervals."""

    case: CaseSummary
    cold: Estimate
    warm: Estimate

    def at(self, calls: float, end: str = "median") -> float:
        """Total seconds; `end` is median, low or high."""
        cold, warm = getattr(self.cold, end), getattr(self.warm, end)
        return float(cold + (calls - 1) * warm)

    @property
    def ends(self) -> tuple[str, ...]:
        """Values for `at`; low and high only if both parts have an interval."""
        banded = all(quantities.has_interval(e) and e.low > 0 for e in (self.cold, self.warm))
        return ("median", "low", "high") if banded else ("median",)


def curves(cases: Sequence[CaseSummary]) -> list[Curve]:
    """The curves of cases that have both a cold and a warm time."""
    return [
        Curve(case, case.cold_seconds, case.warm_call_seconds)
        for case in cases
        if case.cold_seconds is not None
        and case.warm_call_seconds is not None
        and min(case.cold_seconds.median, case.warm_call_seconds.median) > 0
    ]


def last_call(found: Sequence[Curve]) -> float:
    """The end of the axis: beyond the last break-even, or where warm calls dominate."""
    crossings = [at for c in found if (at := _overtakes_at(c.case)) < math.inf]
    crossings = crossings or [c.cold.median / c.warm.median for c in found]
    return 10.0 ** min(max(math.ceil(math.log10(max(crossings) * 3)), 3), 15)


def _overtakes_at(case: CaseSummary) -> float:
    """The number of calls of its break-even; infinity if there is none."""
    even = case.break_even_calls
    return math.inf if even is None or isinstance(even.calls, str) else float(even.calls)


def height_of(number: int) -> float:
    """The design height of a figure with so many curves."""
    return min(max(290.0, 58.0 * number), 430.0)


def draw(workload: Workload, width: float) -> str:
    """The figure at one design width; requires at least one curve."""
    found = curves(workload.cases)
    labels = max(text_width(label(c.case), _FONT) for c in found) + 22
    left, height = 50.0, height_of(len(found))
    right, bottom = width - labels, height - 40
    x = Logarithmic(1.0, last_call(found), left, right)
    ends = [c.at(n, e) for c in found for n in (1.0, x.high) for e in c.ends]
    y = Logarithmic(min(ends) / 1.4, max(ends) * 1.2, bottom, 10)
    body = _axes(x, y, bottom, right)
    body += "".join(_band(c, x, y, workload) for c in found if "low" in c.ends)
    body += "".join(_line(c, x, y, workload) for c in found)
    body += _end_labels(found, x, y, workload, bottom)
    body += _crossings(found, x, y, workload)
    caption = f"{workload.label}: total seconds against the number of calls, log-log"
    return svg.canvas(width, height, caption, body, "narrow" if width < 400 else "wide")


def _axes(x: Logarithmic, y: Logarithmic, bottom: float, right: float) -> str:
    parts = []
    for value in x.ticks(5 if right < 300 else 8):
        parts.append(line(x(value), 10, x(value), bottom, "grid"))
        parts.append(text(x(value), bottom + 16, quantities.power(value), "tick", "middle"))
    for value in y.ticks(8):
        parts.append(line(x.start, y(value), right, y(value), "grid"))
        parts.append(text(x.start - 6, y(value) + 4, quantities.tick_seconds(value), "tick", "end"))
    middle = (x.start + right) / 2
    parts.append(text(middle, bottom + 34, "calls, the first included", "axis", "middle"))
    return "".join(parts)


def _steps(x: Logarithmic) -> list[float]:
    return [(x.high / x.low) ** (i / _POINTS) * x.low for i in range(_POINTS + 1)]


def _band(curve: Curve, x: Logarithmic, y: Logarithmic, workload: Workload) -> str:
    upper = [(x(n), y(curve.at(n, "high"))) for n in _steps(x)]
    lower = [(x(n), y(curve.at(n, "low"))) for n in reversed(_steps(x))]
    return _group(curve, workload, polyline(upper + lower, "band", close=True))


def _group(curve: Curve, workload: Workload, *parts: str, state: str = "") -> str:
    class_ = workload.marks[curve.case.backend].class_ + state
    return element("g", *parts, class_=class_, data_case=curve.case.case)


def _line(curve: Curve, x: Logarithmic, y: Logarithmic, workload: Workload) -> str:
    mark = workload.marks[curve.case.backend]
    points = " ".join(f"{x(n):.1f},{y(curve.at(n)):.1f}" for n in _steps(x))
    stroke = element("polyline", points=points, class_="curve", stroke_dasharray=mark.dash or None)
    start = mark.at(x(1), y(curve.at(1)), hollow=hollow(curve.case))
    tip = svg.title(
        f"{curve.case.case}: {quantities.estimate(curve.cold)} to the first result, then "
        f"{quantities.estimate(curve.warm)} per call"
    )
    state = " doubtful" if flag(curve.case) else ""
    return _group(curve, workload, stroke, start, tip, state=state)


def _end_labels(
    found: Sequence[Curve], x: Logarithmic, y: Logarithmic, workload: Workload, bottom: float
) -> str:
    wanted = [y(c.at(x.high)) for c in found]
    placed = svg.spread(wanted, 15, 16, bottom)
    parts = []
    for curve, own, at in zip(found, wanted, placed, strict=True):
        mark = workload.marks[curve.case.backend]
        leader = polyline([(x.end + 1, own), (x.end + 8, at)], "leader")
        glyph = mark.at(x.end + 13, at, 4, hollow(curve.case))
        class_ = "endname flagged" if flag(curve.case) else "endname"
        name = text(x.end + 20, at + 4, label(curve.case), class_)
        parts.append(_group(curve, workload, leader, glyph, name))
    return "".join(parts)


def _crossings(found: Sequence[Curve], x: Logarithmic, y: Logarithmic, workload: Workload) -> str:
    """A ring on each compiled curve at its break-even with the last uncompiled one."""
    parts: list[str] = []
    taken: list[Box] = []
    for curve in sorted(found, key=lambda c: _overtakes_at(c.case)):
        even, calls = curve.case.break_even_calls, _overtakes_at(curve.case)
        if even is None or not 1 < calls <= x.high:
            continue
        cx, cy = x(calls), y(curve.at(calls))
        shown = f"{quantities.calls(even.calls)} calls"
        ring = element("circle", cx=cx, cy=cy, r=5.0, class_="crossing")
        name = _ring_label(shown, cx, cy, taken, (x.start, x.end, y.start))
        tip = svg.title(f"{curve.case.case} {break_even_tip(curve.case)}")
        whisker = _whisker(even.low, even.high, x, cy)
        parts.append(_group(curve, workload, whisker, ring, name, tip))
    return "".join(parts)


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _ring_label(
    shown: str, cx: float, cy: float, taken: list[Box], room: tuple[float, float, float]
) -> str:
    """The count beside its ring at the first free place; omitted if there is none.

    Below right is tried first: after a crossing no curve is there.
    """
    width = text_width(shown, 11.5)
    ring = (cx - 5, cy - 5, cx + 5, cy + 5)
    for dx, dy in ((7, 17), (-7 - width, -9), (7, 30), (-7 - width, 17), (7, -9), (7, 43)):
        box = (cx + dx, cy + dy - 10, cx + dx + width, cy + dy + 2)
        inside = room[0] < box[0] and box[2] < room[1] + 4 and box[3] < room[2]
        touched = any(
            box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken
        )
        if inside and not touched:
            taken += [box, ring]
            return text(cx + dx, cy + dy, shown, "crossing-label")
    taken.append(ring)
    return ""


def _whisker(low: int | str, high: int | str, x: Logarithmic, cy: float) -> str:
    ends = [float(v) if isinstance(v, (int, float)) else math.inf for v in (low, high)]
    x1, x2 = (x(min(max(v, 1.0), x.high)) for v in ends)
    return line(x1, cy, x2, cy, "whisker")


def break_even_tip(case: CaseSummary) -> str:
    """'has cost less than numpy after 1 240 calls (1 100–1 400)'."""
    even = case.break_even_calls
    if even is None:
        return ""
    span = f"({quantities.calls(even.low)}–{quantities.calls(even.high)})"
    if isinstance(even.calls, str):
        never = f"never costs less than {even.against}"
        return never if even.low == even.high else f"{never} {span}"
    if even.calls <= 1:
        return f"answers before {even.against}: nothing to pay back"
    return f"has cost less than {even.against} after {quantities.calls(even.calls)} calls {span}"
