"""Every process as a dot: the distribution behind each median.

All rows share one axis, the ratio to the case's own median, so that a noisy case looks noisy beside
a quiet one whatever their speeds. Height within a row is not jitter: it is the place in the run, so
a drift leans and two regimes that alternate do not look like two that follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from firstlight.present import quantities
from firstlight.present.palette import Mark
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
from firstlight.records import CaseSummary, Estimate, Sample
from firstlight.report.admission import Workload, flag, hollow, label

_PITCH, _STRIP = 58.0, 30.0
_PERCENTS = (0, 100, -50, 10, -10, 20, -20, 50, 400, 5, -5, 2, -2, 1, -1, 900, 200, -75, -90)


def draw(workload: Workload, width: float) -> str:
    """The strips of the cases that have a number, at one design width."""
    cases = [c for c in workload.cases if c.cold_seconds is not None]
    low, high = _domain(cases, workload)
    scale = Logarithmic(low, high, 8, width - 8)
    height = _PITCH * len(cases) + 24
    body = _axis(scale, height - 22)
    for i, case in enumerate(cases):
        if case.cold_seconds is not None:
            mark = workload.marks[case.backend]
            own = workload.samples.get(case.case, ())
            body += _row(case, case.cold_seconds, own, mark, scale, i * _PITCH, width)
    caption = f"{workload.label}: time to first result of every process, relative to its median"
    return canvas(width, height, caption, body, "narrow" if width < 400 else "wide")


def _domain(cases: Sequence[CaseSummary], workload: Workload) -> tuple[float, float]:
    """Ratios that cover every process and every interval, at least 5 % to both sides."""
    ratios = [0.95, 1.05]
    for case in cases:
        cold = case.cold_seconds
        if cold is None or cold.median <= 0:
            continue
        ends = [cold.low, cold.high] if quantities.has_interval(cold) else []
        ends += _totals(workload.samples.get(case.case, ()))
        ratios += [end / cold.median for end in ends if end > 0]
    pad = (max(ratios) / min(ratios)) ** 0.02
    return min(ratios) / pad, max(ratios) * pad


def _totals(samples: Sequence[Sample]) -> list[float]:
    totals = (s.cold.total_seconds for s in samples if s.cold is not None)
    return [t for t in totals if quantities.known(t)]


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
    samples: Sequence[Sample],
    mark: Mark,
    scale: Logarithmic,
    top: float,
    width: float,
) -> str:
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
        parts.append(_dots(samples, cold.median, mark, scale, strip, hover=width > 400))
    state = "row doubtful" if flag(case) else "row"
    return element("g", *parts, class_=state, data_case=case.case)


def _dots(
    samples: Sequence[Sample],
    median: float,
    mark: Mark,
    scale: Logarithmic,
    top: float,
    hover: bool,
) -> str:
    """A phone has no pointer to rest on a dot, so there the dots go without their titles."""
    drawn = [s for s in samples if s.cold is not None and _totals([s]) and s.cold.total_seconds > 0]
    step = _STRIP / max(len(drawn) - 1, 1)
    dots = []
    for i, sample in enumerate(drawn):
        seconds = sample.cold.total_seconds if sample.cold else math.nan
        tip = ""
        if hover:
            place = f"process {i + 1} of {len(drawn)}, {sample.order} in the run"
            tip = tooltip(f"{place}: {quantities.seconds(seconds)}")
        x, y = scale(seconds / median), top + (i * step if len(drawn) > 1 else _STRIP / 2)
        dots.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="2.6">{tip}</circle>')
    return f'<g class="dots {mark.class_}">{"".join(dots)}</g>'
