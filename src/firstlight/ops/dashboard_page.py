"""A dashboard as one HTML file, drawn from Prometheus queries where there is no Grafana."""

from __future__ import annotations

import html
import math
import re
import time
from collections.abc import Sequence

from firstlight.ops.dashboards import Dashboard, Panel, resolved
from firstlight.ops.prometheus_api import Prometheus, TimeSeries
from firstlight.present.document import document, masthead
from firstlight.present.svg import Linear, canvas, line, polyline, text

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 520.0, 190.0, 58.0, 22.0
_COLOURS = (
    *("jax-jit", "torch-eager", "numpy", "torch-compile"),
    *("other-0", "jax-eager", "other-2", "other-3"),
)
#: A series that was 0 throughout is named only among the first so many.
_MAX_NAMED_ZEROS = 4
_STYLE = (
    ".panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); "
    "gap: 1rem; } .panels section { border: 1px solid var(--rule); border-radius: 6px; "
    "padding: .7rem .9rem; margin: 0; } .panels h2 { font-size: 1rem; margin: 0 0 .3rem; } "
    ".panels ul { display: flex; flex-wrap: wrap; gap: .1rem .9rem; list-style: none; "
    "margin: .3rem 0 0; padding: 0; font-size: .8rem; } .panels .about { font-size: .8rem; "
    "color: var(--muted); margin: 0; } .panels svg { width: 100%; height: auto; } "
    ".panels svg text { font-size: 11px; fill: var(--muted); } "
    + "".join(f".k{i} {{ --c: var(--b-{name}); }} " for i, name in enumerate(_COLOURS))
    + ".key::before { content: '●'; color: var(--c); margin-right: .3em; } "
    ".drawn { fill: none; stroke: var(--c); stroke-width: 1.8; } "
    # Colours repeat, dashed, when there are more series than colours.
    ".key.again::before { content: '○'; } .drawn.again { stroke-dasharray: 4 3; }"
)


def page(dashboard: Dashboard, prometheus: Prometheus, minutes: float) -> str:
    """The last `minutes` of a dashboard."""
    end = time.time()
    start, step = end - 60 * minutes, max(1.0, 60 * minutes / 240)
    drawn = "".join(
        _section(panel, _answers(panel, prometheus, start, end, step), start, end)
        for panel in dashboard.panels
    )
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end))
    lead = f"<p>The last {minutes:g} minutes until {when}.</p>"
    return document(
        dashboard.title,
        f'{masthead(dashboard.title, lead)}<main><div class="panels">{drawn}</div></main>',
        style=_STYLE,
    )


def _answers(
    panel: Panel, prometheus: Prometheus, start: float, end: float, step: float
) -> list[tuple[str, TimeSeries]]:
    found = []
    for legend, expression in panel.queries:
        for series in prometheus.range(resolved(expression), start, end, step):
            if series.points:
                found.append((_named(legend, series.labels), series))
    return found


def _named(legend: str, labels: dict[str, str]) -> str:
    filled = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
    return filled.replace(" :", ":").strip()  # a label may be empty


def _section(
    panel: Panel, all_series: Sequence[tuple[str, TimeSeries]], start: float, end: float
) -> str:
    all_series = sorted(all_series, key=lambda named: _is_zero(named[1]))
    body = _drawn(panel, all_series, start, end) if all_series else '<p class="about">No data.</p>'
    keys = "".join(
        f'<li class="key {_colour(i)}">{html.escape(name)}: '
        f"{html.escape(shown(series.points[-1][1], panel.unit))}</li>"
        for i, (name, series) in enumerate(all_series)
        if i < _MAX_NAMED_ZEROS or not _is_zero(series)
    )
    if hidden := sum(_is_zero(series) for _, series in all_series[_MAX_NAMED_ZEROS:]):
        keys += f"<li>{hidden} more: always 0</li>"
    about = f'<p class="about">{html.escape(panel.about)}</p>' if panel.about else ""
    return f"<section><h2>{html.escape(panel.title)}</h2>{about}{body}<ul>{keys}</ul></section>"


def _is_zero(series: TimeSeries) -> bool:
    return not any(value for _, value in series.points)


def _colour(number: int) -> str:
    """The CSS classes of a series."""
    again, colour = divmod(number, len(_COLOURS))
    return f"k{colour} again" if again else f"k{colour}"


def _drawn(
    panel: Panel, all_series: Sequence[tuple[str, TimeSeries]], start: float, end: float
) -> str:
    highest = max(value for _, series in all_series for _, value in series.points) or 1.0
    across = Linear(start, end, _LEFT, _WIDTH - 6)
    up = Linear(0.0, highest * 1.05, _HEIGHT - _BOTTOM, 8)
    parts = []
    step = 1024.0 ** int(math.log(highest, 1024)) if panel.unit == "bytes" and highest > 1 else 1.0
    for tick in (step * t for t in Linear(0.0, up.high / step, 0, 1).ticks(4)):
        parts.append(line(_LEFT, up(tick), _WIDTH - 6, up(tick), "grid"))
        parts.append(text(_LEFT - 6, up(tick) + 4, shown(tick, panel.unit), anchor="end"))
    for share in (0.0, 0.5, 1.0):
        moment = start + share * (end - start)
        label = time.strftime("%H:%M:%S", time.gmtime(moment))
        anchor = ("start", "middle", "end")[round(2 * share)]
        parts.append(text(across(moment), _HEIGHT - 6, label, anchor=anchor))
    for i, (_, series) in enumerate(all_series):
        for piece in _pieces(series.points, (end - start) / 100):
            points = [(across(moment), up(value)) for moment, value in piece]
            points.insert(0, (points[0][0] - 1, points[0][1]))  # makes a single point visible
            parts.append(polyline(points, f"drawn {_colour(i)}"))
    return canvas(_WIDTH, _HEIGHT, panel.title, "".join(parts))


def _pieces(
    points: Sequence[tuple[float, float]], longest_gap: float
) -> list[list[tuple[float, float]]]:
    """The points, split where two are further apart than `longest_gap` seconds."""
    pieces = [[points[0]]]
    for point in points[1:]:
        if point[0] - pieces[-1][-1][0] > longest_gap:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def shown(value: float, unit: str) -> str:
    """A value as text; `unit` is Grafana's name for its unit."""
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "currencyUSD":
        return f"${value:.2g}"
    if unit in ("reqps", "cps"):
        return f"{value:.3g}/s"
    if unit == "s":
        return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)))
    if unit == "bytes":
        return _scaled(value, (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)))
    return f"{value:.3g}"


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    name, size = next(((n, s) for n, s in units if abs(value) >= s), units[-1])
    return f"{value / size:.3g} {name}" if value else "0"
