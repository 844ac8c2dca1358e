"""Strips: every process as a dot, to show the distribution behind each median.

All rows share one axis, the ratio to the case's median, so that noise is comparable between fast
and slow cases. The height within a row is the position in the run, not jitter: it shows drifts, and
whether two regimes alternate or follow each other.
"""

from __future__ import annotations

from firstlight.present import quantities
from firstlight.present.svg import (
    Logarithmic,
    canvas,
    element,
    line,
    number,
    rectangle,
    text,
    text_width,
)
from firstlight.present.svg import title as tooltip
from firstlight.records import CaseSummary, Estimate
from firstlight.report.admission import Workload, flag, hollow, label

_PITCH, _STRIP = 58.0, 30.0
_PERCENTS = (0, 100, -50, 10, -10, 20, -20, 50, 400, 5, -5, 2, -2, 1, -1, 900, 200, -75, -90)


def draw(workload: Workload, width: float) -> str:
    """The strips of the cases that have a number, at one design width."""
    rows = [(c, c.cold_seconds) for c in workload.cases if c.cold_seconds is not None]
    ratios = [0.95, 1.05]  # the axis covers these, and all processes and intervals
    for case, cold in rows:
        ends = [cold.low, cold.high] if quantities.has_interval(cold) else []
        ends += [seconds for _, seconds in _totals(case, workload)]
        ratios += [end / cold.median for end in ends if end > 0 and cold.median > 0]
    pad = (max(ratios) / min(ratios)) ** 0.02
    scale = Logarithmic(min(ratios) / pad, max(ratios) * pad, 8, width - 8)
    height = _PITCH * len(rows) + 24
    body = _axis(scale, height - 22)
    for i, (case, cold) in enumerate(rows):
        body += _row(case, cold, workload, scale, i * _PITCH, width)
    caption = f"{workload.label}: time to first result of every process, relative to its median"
    return canvas(width, height, caption, body, "narrow" if width < 400 else "wide")


def _totals(case: CaseSummary, workload: Workload) -> list[tuple[int, float]]:
    """(position in the run, seconds to the first result) for every process of a case."""
    return [
        (s.order, s.cold.total_seconds)
        for s in workload.samples.get(case.case, ())
        if s.cold is not None and quantities.known(s.cold.total_seconds)
    ]


def _axis(scale: Logarithmic, bottom: float) -> str:
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    for percent in _PERCENTS:
        ratio = 1 + percent / 100
        if not scale.low <= ratio <= scale.high:
            continue
        shown = "median" if percent == 0 else f"{percent:+d}\u202f%".replace("-", "−")
        x, half = scale(ratio), text_width(shown, 11) / 2 + 4
        x_text = min(max(x, half - 4), scale.end + 8 - half + 4)
        if all(x_text + half <= a or x_text - half >= b for a, b in taken):
            taken.append((x_text - half, x_text + half))
            parts.append(line(x, 2, x, bottom, "grid zero" if percent == 0 else "grid"))
            parts.append(text(x_text, bottom + 16, shown, "tick", "middle"))
    return "".join(parts)


def _row(
    case: CaseSummary,
    cold: Estimate,
    workload: Workload,
    scale: Logarithmic,
    top: float,
    width: float,
) -> str:
    mark = workload.marks[case.backend]
    shown = quantities.estimate(cold) + (" ⚠" if flag(case) else "")
    if text_width(f"{label(case)}  {shown}  n={cold.n}", 12) + 24 < width:
        shown += f"  n={cold.n}"
    class_ = "total flagged" if flag(case) else "total"
    parts = [mark.at(7, top + 10, hollow=hollow(case)), text(17, top + 14, label(case), "rowname")]
    parts.append(text(width - 2, top + 14, shown, class_, "end"))
    strip = top + 21
    if cold.median > 0:
        if quantities.has_interval(cold) and cold.low > 0:
            x1, x2 = scale(cold.low / cold.median), scale(cold.high / cold.median)
            tip = tooltip(f"interval of the median {quantities.estimate(cold)}")
            box = rectangle(x1, strip - 2, max(x2 - x1, 1.5), _STRIP + 4, "interval", tip)
            parts.append(element("g", box, class_=mark.class_))
        parts.append(line(scale(1), strip - 4, scale(1), strip + _STRIP + 4, "median"))
        ratios = [(o, s, s / cold.median) for o, s in _totals(case, workload) if s > 0]
        dots = _dots(ratios, scale, strip, hover=width > 400)
        parts.append(f'<g class="dots {mark.class_}">{dots}</g>')
    state = "row doubtful" if flag(case) else "row"
    return element("g", *parts, class_=state, data_case=case.case)


def _dots(
    drawn: list[tuple[int, float, float]], scale: Logarithmic, top: float, hover: bool
) -> str:
    """The dots; `hover` adds tooltips, which phones cannot show."""
    step = _STRIP / max(len(drawn) - 1, 1)
    dots = []
    for i, (order, seconds, ratio) in enumerate(drawn):
        position = f"process {i + 1} of {len(drawn)}, {order} in the run"
        tip = tooltip(f"{position}: {quantities.seconds(seconds)}") if hover else ""
        y = top + (i * step if len(drawn) > 1 else _STRIP / 2)
        dots.append(f'<circle cx="{number(scale(ratio))}" cy="{number(y)}" r="2.6">{tip}</circle>')
    return "".join(dots)
