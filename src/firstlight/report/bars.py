"""Stacked bars with a row per case: time by phase, shares of phases, and memory by phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from firstlight.present import quantities
from firstlight.present.palette import PHASE_COLOURS, Mark
from firstlight.present.svg import Linear, canvas, element, line, rectangle, text, text_width, title
from firstlight.records import PHASES, CaseSummary
from firstlight.report.admission import Workload, flag, hollow, label

WIDE, NARROW = 920.0, 358.0
_FONT = 12.0
_BAR = 20.0


@dataclass(frozen=True)
class Segment:
    """One part of a bar."""

    phase: str
    value: float
    shown: str  # the value with its unit


@dataclass(frozen=True)
class Row:
    """A case with its bar; without segments only `shown` is drawn."""

    case: CaseSummary
    segments: tuple[Segment, ...] = ()
    total: float | None = None
    low: float | None = None
    high: float | None = None
    shown: str = ""  # the total as text, or why there is none
    short: str = ""  # a shorter form for narrow figures

    @property
    def extent(self) -> float:
        """The end of the bar or its whisker."""
        return max(sum(s.value for s in self.segments), self.total or 0.0, self.high or 0.0)


def in_order(phases: Iterable[str]) -> list[str]:
    """Phases in the order of a process, unknown ones last."""
    found = list(phases)
    return [p for p in PHASES if p in found] + [p for p in found if p not in PHASES]


def phase_name(phase: str) -> str:
    """'first_execute' as words."""
    return phase.replace("_", " ")


def phase_class(phase: str) -> str:
    """The CSS class of a phase; unknown ones share one."""
    known = phase == "unattributed" or f"p-{phase}" in PHASE_COLOURS
    return f"p-{phase}" if known else "p-later"


def time_rows(workload: Workload) -> list[Row]:
    """One row per case: medians of the phases, and the median of the total with its interval."""
    return [_time_row(case) for case in workload.cases]


def _time_row(case: CaseSummary) -> Row:
    cold = case.cold_seconds
    if cold is None:
        return Row(case, shown=f"{flag(case) or 'not measured'}: no number")
    values = [(phase, case.phases_seconds[phase]) for phase in in_order(case.phases_seconds)]
    values.append(("unattributed", case.unattributed_seconds))
    segments = tuple(
        Segment(phase, v, quantities.seconds(v)) for phase, v in values if v is not None and v > 0
    )
    low, high = (cold.low, cold.high) if quantities.has_interval(cold) else (None, None)
    shown = quantities.estimate(cold)
    full, short = _flagged(case, f"{shown}  n={cold.n}"), f"{shown} ⚠" if flag(case) else shown
    return Row(case, segments, cold.median, low, high, full, short)


def share_rows(rows: Sequence[Row]) -> list[Row]:
    """The same bars, each scaled to 100."""
    return [
        Row(row.case, tuple(replace(s, value=100 * s.value / whole) for s in row.segments))
        for row in rows
        if (whole := sum(s.value for s in row.segments)) > 0
    ]


def memory_rows(workload: Workload) -> list[Row]:
    """One row per case: by how many bytes each phase raised the peak host memory."""
    rows = []
    for case in workload.cases:
        if case.peak_host_bytes is None and not any(case.peak_host_bytes_by_phase.values()):
            continue
        segments = _rises(case)
        total = float(case.peak_host_bytes or sum(s.value for s in segments))
        shown = quantities.size(total)
        if case.peak_device_bytes is not None:
            shown += f" + {quantities.size(case.peak_device_bytes)} device"
        rows.append(Row(case, segments, total, shown=_flagged(case, shown)))
    return rows


def _rises(case: CaseSummary) -> tuple[Segment, ...]:
    peaks = case.peak_host_bytes_by_phase
    steps = [(phase, peaks[phase]) for phase in in_order(peaks)]
    steps.append(("after first result", case.peak_host_bytes))
    segments, reached = [], 0.0
    for phase, peak in steps:
        if peak is not None and peak > reached:
            segments.append(Segment(phase, peak - reached, "+" + quantities.size(peak - reached)))
            reached = float(peak)
    return tuple(segments)


def _flagged(case: CaseSummary, shown: str) -> str:
    return f"{shown}  ⚠ {flag(case)}" if flag(case) else shown


def legend(rows: Sequence[Row]) -> str:
    """The legend of the phases in `rows`."""
    order = in_order(dict.fromkeys(s.phase for row in rows for s in row.segments))
    order.sort(key=lambda p: p == "unattributed")
    items = "".join(
        f'<li><i class="{phase_class(p)}"></i>{escape(phase_name(p))}</li>' for p in order
    )
    return f'<ul class="legend">{items}</ul>'


def draw(
    rows: Sequence[Row],
    marks: Mapping[str, Mark],
    caption: str,
    units: quantities.Units,
    width: float = WIDE,
    above: Sequence[Row] | None = None,
) -> str:
    """The figure at one design width; if narrow, labels are above the bars.

    If placed below a figure of the rows `above`, bars are aligned with it and have no axis or
    totals.
    """
    narrow, slim = width < 600, above is not None
    names = [label(row.case) for row in above or rows]
    left = 0.0 if narrow else text_width(max(names, key=len), _FONT) + 24
    pitch = 46.0 if narrow else 25.0 if slim else 31.0
    scale = _scale(rows, left, width, fits_totals=not (narrow or slim))
    height = 4 + pitch * len(rows) + (2 if slim else 24)
    body = "" if slim else _axis(scale, units, height - 22, width)
    for i, row in enumerate(rows):
        top = 4 + i * pitch + (20 if narrow else (pitch - _BAR) / 2)
        body += _draw_row(row, marks[row.case.backend], scale, top, narrow, width)
    return canvas(width, height, caption, body, "narrow" if narrow else "wide")


def _scale(rows: Sequence[Row], left: float, width: float, fits_totals: bool) -> Linear:
    """The scale on which the text of every total fits after its bar."""
    reach = max((row.extent for row in rows), default=0.0)
    start, end = left + 2, width - 8
    for row in rows if fits_totals else ():
        if row.extent > 0:
            room = width - 12 - text_width(row.shown, _FONT) - start
            end = min(end, start + room * reach / row.extent)
    return Linear(0.0, reach or 1.0, start, end)


def _axis(scale: Linear, units: quantities.Units, bottom: float, width: float) -> str:
    parts = []
    unit, _ = quantities.unit_of(scale.high, units)
    inner = Linear(scale.low / unit, scale.high / unit, scale.start, scale.end)
    ticks = [unit * t for t in inner.ticks(4 if width < 600 else 7)]
    for value, shown in zip(ticks, quantities.axis_labels(scale.high, ticks, units), strict=True):
        x = scale(value)
        anchor = "start" if value == 0 else "end" if x > width - 24 else "middle"
        parts.append(line(x, 2, x, bottom, "grid"))
        parts.append(text(x, bottom + 16, shown, "tick", anchor))
    return "".join(parts)


def _draw_row(row: Row, mark: Mark, scale: Linear, top: float, narrow: bool, width: float) -> str:
    baseline = top - 6 if narrow else top + _BAR / 2 + 4
    parts = [mark.at(6, baseline - 4, hollow=hollow(row.case))]
    parts.append(text(16, baseline, label(row.case), "rowname"))
    x = scale(0)
    for segment in row.segments:
        end = scale(segment.value) - scale(0) + x
        parts.append(_draw_segment(segment, x, end, top, hover=not narrow))
        x = end
    parts.append(_median(row, scale, top))
    class_ = "total flagged" if flag(row.case) else "total"
    if narrow and row.shown:
        room = width - 30 - text_width(label(row.case), _FONT)
        shown = row.shown if text_width(row.shown, _FONT) < room else row.short or row.shown
        parts.append(text(width - 2, baseline, shown, class_, "end"))
    elif row.shown:
        at = max(x, scale(row.high or row.total or 0)) + 8 if row.segments else scale(0)
        parts.append(text(at, baseline, row.shown, class_))
    state = "row doubtful" if flag(row.case) and row.segments else "row"
    return element("g", *parts, class_=state, data_case=row.case.case)


def _median(row: Row, scale: Linear, top: float) -> str:
    """The mark of the total, and its interval below the bar, where it crosses no label."""
    if row.total is None:
        return ""
    below, parts = top + _BAR + 4, ""
    if row.low is not None and row.high is not None:
        parts = line(scale(row.low), below, scale(row.high), below, "whisker")
        for x in (scale(row.low), scale(row.high)):
            parts += line(x, below - 3, x, below + 3, "whisker")
    return parts + line(scale(row.total), top - 2, scale(row.total), top + _BAR + 6, "median")


def _draw_segment(segment: Segment, x: float, end: float, top: float, hover: bool) -> str:
    class_, name = phase_class(segment.phase), phase_name(segment.phase)
    tip = title(f"{name}: {segment.shown}") if hover else ""
    box = rectangle(x, top, end - x, _BAR, f"seg {class_}", tip)
    for shown in (f"{name} {segment.shown}", name):
        if end - x > text_width(shown, 11) + 6:
            ink = f"inside {class_}-ink"
            return box + text((x + end) / 2, top + _BAR / 2 + 4, shown, ink, "middle")
    return box
