"""The first page: a summary over all cases, every step, and possible steps."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from html import escape

from firstlight.compare.environments import changed
from firstlight.compare.verdicts import change
from firstlight.present.quantities import counted
from firstlight.site.admission import Refused
from firstlight.site.changes import RECENT_DAYS, Change, Departure, Shifts, Summary
from firstlight.site.comparisons import SnapshotPair
from firstlight.site.frame import FEED, link, page, section, snapshot_link, table, toned, trend_link
from firstlight.site.trend_chart import day

MAX_STEPS = 200  # on the page; the trends have them all
NAMES = {
    "cold_seconds": "first result",
    "compile": "compile",
    "warm_call_seconds": "warm call",
}
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


def changes_page(
    site: str,
    steps: Sequence[Change],
    summary: Sequence[Summary],
    departing: Sequence[Departure],
    refused: Sequence[Refused],
    repository: str | None,
    compared: Collection[SnapshotPair],
) -> bytes:
    """`steps` are in display order; `repository` is the URL that commits are linked to.

    `compared` are the pairs of snapshots whose comparison has a page.
    """
    lead = f'<p>{counted(len(steps), "step")} in all trends · <a href="{FEED}">Atom feed</a></p>'
    if refused:
        lead += f'<p><a href="#refused">{counted(len(refused), "folder")} refused</a></p>'
    body = _summary(summary) + _steps(steps, repository, compared) + _departing(departing)
    return page(site, "What changed", body + _refused(refused), "", lead, (), "index.html")


def _summary(summary: Sequence[Summary]) -> str:
    if not summary:
        return ""
    head = ("quantity", "slower", "faster", "unchanged", "too few runs to tell")
    rows = [
        [
            NAMES[s.quantity],
            _shifts(s.slower, "slower"),
            _shifts(s.faster, "faster"),
            str(s.unchanged),
            str(s.too_short),
        ]
        for s in summary
    ]
    words = (
        '<p class="prose">Every case that was measured in this period counts once per quantity '
        "and machine, by the product of its steps; the mean is geometric. With fewer than ten "
        "runs no step can be found.</p>"
    )
    title = f"All cases, {RECENT_DAYS} days up to the newest run"
    return section(title, words + table(head, rows))


def _shifts(shifts: Shifts, tone: str) -> str:
    """Their number, the smallest and largest, and their mean."""
    if not shifts.ratios:
        return "0"
    ordered = sorted(shifts.ratios, key=lambda ratio: abs(math.log(ratio)))
    span = " to ".join(dict.fromkeys((change(ordered[0]), change(ordered[-1]))))
    mean = f", mean {change(shifts.mean)}" if len(ordered) > 1 else ""
    return f'<b class="{tone}">{len(ordered)}</b> <span class="hint">{escape(span + mean)}</span>'


def _steps(
    steps: Sequence[Change], repository: str | None, compared: Collection[SnapshotPair]
) -> str:
    if not steps:
        none = (
            '<p class="prose">None yet. A step is a change of level of 3 % or more with at least '
            "five runs on both sides, so a trend needs ten runs.</p>"
        )
        return section("Steps", none)
    head = ("case", "size", "quantity", "from", "between", "machine")
    rows = [_step_row(found, repository, compared) for found in steps[:MAX_STEPS]]
    cut = f", the newest {MAX_STEPS} of {len(steps)}" if len(steps) > MAX_STEPS else ""
    shown = table(head, rows, "small left changes", "size")
    return section(f"Steps, newest first{cut}", shown)


def _step_row(
    found: Change, repository: str | None, compared: Collection[SnapshotPair]
) -> list[str]:
    effect = found.step.effect
    span = escape(f"[{change(effect.low)}, {change(effect.high)}]")
    pair = SnapshotPair(found.before.snapshot, found.after.snapshot)
    comparison = f" {link(pair.path, 'compare')}" if pair in compared else ""
    return [
        trend_link(found.case),
        f'{toned(effect.ratio)} <span class="hint">{span}</span>',
        NAMES[found.quantity],
        snapshot_link(found.after.snapshot, day(found.after.moment)),
        between(found, repository) + comparison,
        escape(found.machine),
    ]


def between(found: Change, repository: str | None) -> str:
    """The commits on both sides of a step, linked if `repository` is given; other versions."""
    one, other = (
        {name: version for name, version in point.versions.items() if name != "commit"}
        for point in (found.before, found.after)
    )
    parts = [escape(text) for text in changed(one, other)]
    base, head = (
        str(p.versions.get("commit", "")).split(" ")[0] for p in (found.before, found.after)
    )
    if base != head and _COMMIT.fullmatch(base) and _COMMIT.fullmatch(head):
        words = f"{base[:9]}…{head[:9]}"
        shown = f"<code>{words}</code>"
        if repository:
            shown = link(f"{repository.rstrip('/')}/compare/{base}...{head}", words)
        parts.insert(0, f"commits {shown}")
    return "; ".join(parts) or "no recorded version changed"


def _departing(departing: Sequence[Departure]) -> str:
    if not departing:
        return ""
    rows = [
        [
            trend_link(d.case),
            toned(d.ratio),
            NAMES[d.quantity],
            counted(d.runs, "run"),
            snapshot_link(d.newest.snapshot, day(d.newest.moment)),
            escape(d.machine),
        ]
        for d in departing
    ]
    head = ("case", "size", "quantity", "so far", "newest", "machine")
    words = (
        '<p class="prose">The newest runs of these differ from their level by more than drift '
        "between jobs (15 %), but are too few for a step.</p>"
    )
    return section("Possible steps", words + table(head, rows, "small left changes", "size"))


def _refused(refused: Sequence[Refused]) -> str:
    if not refused:
        return ""
    items = "".join(
        f"<li><code>{escape(r.id)}</code> <span>{escape(r.reason[:500])}</span></li>"
        for r in refused
    )
    title = f"Refused: {counted(len(refused), 'folder')} that did not verify"
    body = f"<p>None of their content is shown on this site.</p><ul>{items}</ul>"
    return section(title, body, 'id="refused" class="warnings"')
