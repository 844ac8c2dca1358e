"""Panels of warm calls: every call after the first result in order, one panel per case."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from itertools import pairwise
from operator import itemgetter

from firstlight.present import quantities
from firstlight.present.svg import Logarithmic, canvas, line, number, rectangle, text
from firstlight.records import CaseSummary, Sample, WarmEstimate
from firstlight.report.admission import Workload, badge

_WIDTH, _HEIGHT = 320.0, 132.0
#: Calls drawn on the whole page: at 9 bytes each, a fifth of its 3 MB.
PAGE_POINTS = 60_000
_MIN_POINTS = 16  # per process


def points_per_process(samples: Mapping[str, Sequence[Sample]]) -> int:
    """The number of calls per process that may be drawn, to limit the size of the page."""
    series = sum(1 for own in samples.values() for s in own if s.warm is not None)
    return max(_MIN_POINTS, PAGE_POINTS // max(series, 1))


def thinned(values: Sequence[float], limit: int) -> list[tuple[int, float]]:
    """At most `limit` calls as (number from 1, seconds).

    Calls are grouped into stretches of equal width on the logarithmic axis, and each stretch keeps
    its fastest and its slowest call, so that no spike is lost.
    """
    calls = [(i, v) for i, v in enumerate(values, start=1) if math.isfinite(v) and v > 0]
    if len(calls) <= limit:
        return calls
    seconds = itemgetter(1)
    stretches = [calls[begin:end] for begin, end in _stretches(len(calls), limit // 2)]
    return sorted({pick(own, key=seconds) for own in stretches for pick in (min, max)})


@lru_cache
def _stretches(length: int, wanted: int) -> tuple[tuple[int, int], ...]:
    """At most `wanted` pieces of range(length), equally wide on a logarithmic axis."""
    ends = (round((length + 1) ** (i / wanted)) - 1 for i in range(1, wanted + 1))
    return tuple(pairwise(sorted({0, *ends, length})))


def is_thinned(samples: Sequence[Sample], limit: int) -> bool:
    """Whether a process has more calls than are drawn."""
    return any(s.warm is not None and len(s.warm.call_seconds) > limit for s in samples)


def draw(workload: Workload, limit: int) -> str:
    """A grid of panels of the cases with warm calls."""
    panels = "".join(_panel(case, workload, limit) for case in drawn(workload))
    return f'<div class="panels">{panels}</div>'


def drawn(workload: Workload) -> list[CaseSummary]:
    """The cases with warm calls, including those without a steady state."""
    return [
        case
        for case in workload.cases
        if case.warm_call_seconds is not None
        or any(s.warm is not None for s in workload.samples.get(case.case, ()))
    ]


def _panel(case: CaseSummary, workload: Workload, limit: int) -> str:
    warm, samples = case.warm_call_seconds, workload.samples.get(case.case, ())
    steady = warm.steady_class if warm else "no steady state"
    head = (
        f'<div class="panel-head">{workload.name_of(case)}{badge(case)} '
        f'<span class="class{"" if steady == "flat" else " unsteady"}">{escape(steady)}</span>'
        f"<br>{_number(warm)}</div>"
    )
    thin = [thinned(s.warm.call_seconds, limit) for s in samples if s.warm is not None]
    series = [points for points in thin if points]
    picture = _plot(warm, series)
    if picture:
        caption = f"{case.case}: seconds of each warm call in order, {len(series)} processes"
        body = f'<g class="{workload.marks[case.backend].class_}">{picture}</g>'
        picture = canvas(_WIDTH, _HEIGHT, caption, body, "cell")
    return f'<div class="panel" data-case="{escape(case.case)}">{head}{picture}</div>'


def _number(warm: WarmEstimate | None) -> str:
    if warm is None:
        return "no single number represents these calls"
    shown, span = quantities.interval(warm)
    interval = f'<span class="iv">{span}</span>'
    return f'<span class="nowrap">{shown} per call {interval} n={warm.n}</span>'


def _plot(warm: WarmEstimate | None, series: Sequence[Sequence[tuple[int, float]]]) -> str:
    values = [v for points in series for _, v in points]
    if warm is not None:
        values += [v for v in (warm.median, warm.low, warm.high) if quantities.known(v) and v > 0]
    if not values:
        return ""
    centre = math.sqrt(min(values) * max(values))
    # At least a factor of 1.5, so that the noise of a quiet case does not fill its panel.
    spread = max(max(values) / min(values), 1.5) ** 0.5 * 1.04
    last = max((points[-1][0] for points in series), default=10)
    x = Logarithmic(1, max(last, 2), 48, _WIDTH - 6)
    y = Logarithmic(centre / spread, centre * spread, _HEIGHT - 22, 6)
    parts = [_axes(x, y, last)]
    if warm is not None and quantities.has_interval(warm) and warm.low > 0:
        top, bottom = y(warm.high), y(warm.low)
        parts.append(rectangle(x.start, top, x.end - x.start, max(bottom - top, 1.5), "interval"))
    parts += [f'<path class="series" d="{_path(points, x, y)}"/>' for points in series]
    if warm is not None and warm.median > 0:
        parts.append(line(x.start, y(warm.median), x.end, y(warm.median), "median thin"))
    return "".join(parts)


def _path(points: Sequence[tuple[int, float]], x: Logarithmic, y: Logarithmic) -> str:
    """A path of zero-length strokes with round ends, in relative steps on a half-pixel grid.

    Circles would take ten times the bytes.
    """
    places = [(0, 0), *((round(x(call) * 2), round(y(seconds) * 2)) for call, seconds in points)]
    steps = ((number((c - a) / 2), number((d - b) / 2)) for (a, b), (c, d) in pairwise(places))
    return "".join(f"m{dx}{'' if dy.startswith('-') else ' '}{dy}h0" for dx, dy in steps)


def _axes(x: Logarithmic, y: Logarithmic, last: int) -> str:
    parts = [line(x.start, _HEIGHT - 22, x.end, _HEIGHT - 22, "grid")]
    for value in y.ticks(4):
        parts.append(line(x.start, y(value), x.end, y(value), "grid"))
        parts.append(text(x.start - 5, y(value) + 4, quantities.tick_seconds(value), "tick", "end"))
    ticks = [v for v in x.ticks(5) if x.end - x(v) > 40] + [float(max(last, 2))]
    for value in ticks:
        shown = f"call {value:.0f}" if value == 1 else f"{value:.0f}"
        anchor = "start" if value == 1 else "end" if value == ticks[-1] else "middle"
        parts.append(text(x(value), _HEIGHT - 6, shown, "tick", anchor))
    return "".join(parts)
