"""Trend pages: the list of cases, and for each case its series with their steps."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from firstlight.compare.verdicts import change
from firstlight.present import quantities
from firstlight.present.palette import Mark, marks
from firstlight.present.quantities import counted
from firstlight.records import slug
from firstlight.report import protocols
from firstlight.site.frame import finder, link, page, section, snapshot_link, table
from firstlight.site.trend_chart import day, draw
from firstlight.site.trends import Curve, MarkedStep, Point, Series, differing

UP = "../"
_NAMES = {
    "cold_seconds": "Time to first result",
    "compile": "Compile phase of the first result",
    "warm_call_seconds": "Warm call, steady state",
}
_LISTED = 100  # newest points in the table of a curve
_WORDS = (
    "A dot is the median of one run, the thin stroke its interval; the line joins only runs of the "
    "same machine, protocol and data. A numbered step is a change of level of 3 % or more with at "
    "least five runs on both sides. Its interval is computed from ranks of runs; since the place "
    "of the step was chosen from the same data, take it as a description."
)
#: The style sheet alone decides which of the two charts is visible.
_AXES = (
    '<fieldset class="axes"><legend>Charts</legend>'
    '<label><input type="radio" name="axis" id="axis-run" checked> by run or commit</label>'
    '<label><input type="radio" name="axis" id="axis-time"> by time</label></fieldset>'
)


def mark_of(case: str) -> Mark:
    """The colour of the case's backend."""
    parts = case.rsplit("/", 2)
    return marks([parts[1] if len(parts) == 3 else case]).popitem()[1]


def case_page(site: str, case: str, series: Sequence[Series]) -> bytes:
    """All series of a case, the newest first."""
    runs = sum(s.runs for s in series)
    lead = f"<p>{counted(runs, 'run')} in {len(series)} series</p>"
    body = "".join(_series(case, s, series[:i]) for i, s in enumerate(series))
    body = f'<p class="prose">{_WORDS}</p>{_AXES if "<svg" in body else ""}{body}'
    return page(site, case, body, UP, lead)


def _series(case: str, series: Series, earlier: Sequence[Series]) -> str:
    same = next((s for s in earlier if s.machine == series.machine), None)
    body = ""
    if same is not None:
        found = list(differing(same.conditions, series.conditions))
        shown = "".join(f"<li>{escape(text[:300])}</li>" for text in found[:6])
        body = f'<div class="note">Not joined with the series above: <ul>{shown}</ul></div>'
    body += "".join(_curve(case, curve) for curve in series.curves)
    body += (
        "<details><summary>Conditions of all these runs</summary>"
        f'<div class="facts">{protocols.tree(series.conditions)}</div></details>'
    )
    return section(escape(series.machine), body, f'class="series-of" id="s-{series.key}"')


def _curve(case: str, curve: Curve) -> str:
    name, last = _NAMES[curve.quantity], curve.points[-1]
    latest = f"latest {quantities.seconds(last.median)} ({day(last.moment)})"
    drawn = ""
    if len(curve.points) > 1:  # one run is no trend: the table is enough
        drawn = draw(curve, mark_of(case), f"{case}: {name}", UP)
        steps = "".join(f"<li>{_step(curve, step)}</li>" for step in curve.steps)
        drawn += f'<ol class="steps">{steps}</ol>' if steps else ""
    return (
        f'<figure class="trend"><h3>{name} <span class="hint">{escape(latest)}</span></h3>'
        f"{drawn}{_table(curve)}</figure>"
    )


def _step(curve: Curve, step: MarkedStep) -> str:
    effect, after = step.effect, curve.points[step.index]
    what = f"{change(effect.ratio)} [{change(effect.low)}, {change(effect.high)}]"
    why = "; ".join(step.changed) or "no recorded version changed here"
    tone = "slower" if effect.ratio > 1 else "faster"
    place = snapshot_link(after.snapshot, day(after.moment), UP)
    return (
        f'<b class="{tone}">{escape(what)}</b> from {place} on: {escape(why)}'
        f'<span class="hint"> (interval of {escape(quantities.percent(effect.confidence))})'
        "</span>"
    )


def _table(curve: Curve) -> str:
    rows = [_row(p) for p in reversed(curve.points[-_LISTED:])]
    note = f", the newest of {len(curve.points)}" if len(curve.points) > len(rows) else ""
    opened = " open" if len(rows) == 1 else ""
    head = ("measured", "median", "interval", "processes", "versions")
    return (
        f'<details class="more"{opened}><summary>{counted(len(rows), "run")}{note}</summary>'
        f"{table(head, rows, 'small left', 'median')}</details>"
    )


def _row(p: Point) -> list[str]:
    cells = (
        quantities.seconds(p.median),
        f"[{quantities.seconds(p.low)}, {quantities.seconds(p.high)}]",
        str(p.processes),
        ", ".join(f"{name} {v}" for name, v in p.versions.items()),
    )
    return [snapshot_link(p.snapshot, day(p.moment), UP), *map(escape, cells)]


def index_row(case: str, series: Sequence[Series]) -> list[str]:
    """The row of a case in the list: its newest series, with the last step of each quantity."""
    newest = series[0]
    by_name = {curve.quantity: curve for curve in newest.curves}
    latest = [
        escape(quantities.seconds(by_name[q].points[-1].median if q in by_name else None))
        for q in ("cold_seconds", "warm_call_seconds")
    ]
    steps = [
        f"{change(step.effect.ratio)} {curve.quantity.removesuffix('_seconds').replace('_', ' ')}"
        for curve in newest.curves
        for step in curve.steps[-1:]
    ]
    return [
        link(f"{slug(case)}.html", case),
        str(newest.runs),
        str(len({s.machine for s in series})),
        *latest,
        escape("; ".join(steps)) or quantities.ABSENT,
    ]


def index_page(site: str, rows: Sequence[Sequence[str]]) -> bytes:
    """The searchable list of cases."""
    head = ["case", "runs of the newest series", "machines", "first result", "warm call",
            "last step"]  # fmt: skip
    body = finder("jit warm", "cases")
    body += table(head, rows, "small" if rows else "small empty", "last step")
    lead = f"<p>{counted(len(rows), 'case')}</p>"
    return page(site, "Trends", body, UP, lead, ("list.js",), "trends/index.html")
