"""The ribbon: the case with the least total time after N calls, along a logarithmic axis of N."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from firstlight.present import quantities
from firstlight.present.svg import Logarithmic, canvas, element, line, rectangle, text, text_width
from firstlight.present.svg import title as tooltip
from firstlight.report.admission import Workload, label
from firstlight.report.cheapest import CheapestSpan, PolicyGroup, cheapest_spans

_WIDTH, _BAR, _ABOVE = 400.0, 26.0, 16.0


def draw(group: PolicyGroup, workload: Workload) -> str:
    """The ribbon with its caption; '' if there is nothing to compare."""
    found = cheapest_spans(group)
    if len(group.entrants) < 2 or not group.decided or not found:
        return ""
    scale = Logarithmic(1.0, _last(found), 4, _WIDTH - 4)
    places = list(pairwise([*(scale(r.first_call) for r in found), scale.end]))
    fit = all(b - a > _room(r) for r, (a, b) in zip(found, places, strict=True))
    top = 4.0 if fit else 4.0 + _ABOVE
    taken: list[tuple[float, float]] = []
    body = "".join(
        element(
            "g",
            _segment(span, start, end, top, taken),
            class_=workload.marks[span.case.backend].class_,
        )
        for span, (start, end) in zip(found, places, strict=True)
    )
    body += _boundaries(found, scale, top)
    words = ", then ".join(
        f"{label(r.case)} from {quantities.count(r.first_call)} calls" for r in found
    )
    drawn = canvas(_WIDTH, top + 52, f"Least total time after N calls: {words}", body, "ribbon")
    about = "least total time after N calls"
    if any(r.low is None for r in found[1:]):
        about += " (≈ crossing of the medians)"
    return f'<figure class="ribbon-box">{drawn}<figcaption>{about}</figcaption></figure>'


def _room(span: CheapestSpan) -> float:
    return text_width(label(span.case), 12) + 8


def _last(found: Sequence[CheapestSpan]) -> float:
    """The end of the axis, chosen so that the last span has room for its name."""
    start = math.log10(found[-1].first_call) * (_WIDTH - 8)
    room = _WIDTH - 8 - _room(found[-1]) - 4
    return 10.0 ** next((last for last in range(3, 15) if start / last < room), 15)


def _segment(
    span: CheapestSpan, start: float, end: float, top: float, taken: list[tuple[float, float]]
) -> str:
    """A span of the bar with its name inside, or above if there is room."""
    name, middle, room = label(span.case), (start + end) / 2, _room(span)
    tip = tooltip(f"{name}: least total time from {quantities.count(span.first_call)} calls on")
    box = rectangle(start, top, end - start, _BAR, "cheapest", tip)
    if end - start > room:
        return box + text(middle, top + 17, name, "on-cheapest", "middle")
    at = min(max(middle, room / 2), _WIDTH - room / 2)
    beside = _free(at, room / 2, taken)
    return box + (text(at, top - 6, name, "beside-cheapest", "middle") if beside else "")


def _free(at: float, half: float, taken: list[tuple[float, float]]) -> bool:
    """Reserve the space around `at`, unless it is taken."""
    if any(at - half < b and at + half > a for a, b in taken):
        return False
    taken.append((at - half, at + half))
    return True


def _boundaries(found: Sequence[CheapestSpan], scale: Logarithmic, top: float) -> str:
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    bottom = top + _BAR
    for span in found[1:]:
        x = scale(span.first_call)
        if span.low is not None and span.high is not None:
            x1, x2 = (scale(min(max(v, 1.0), scale.high)) for v in (span.low, span.high))
            parts.append(line(x1, bottom + 3, x2, bottom + 3, "whisker"))
        parts.append(line(x, top - 2, x, bottom + 5, "median"))
        shown = ("≈ " if span.low is None else "") + quantities.count(span.first_call)
        parts.append(_axis_label(x, bottom + 18, shown, "boundary", taken))
    for value in scale.ticks(20):
        shown = "1 call" if value == 1 else quantities.power(value)
        parts.append(_axis_label(scale(value), bottom + 18, shown, "tick", taken))
    return "".join(parts)


def _axis_label(
    x: float, y: float, shown: str, class_: str, taken: list[tuple[float, float]]
) -> str:
    half = text_width(shown, 12) / 2 + 4
    at = min(max(x, half - 2), _WIDTH - half + 2)
    return text(at, y, shown, class_, "middle") if _free(at, half, taken) else ""
