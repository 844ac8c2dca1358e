"""The first page: what changed. A summary over all cases, every step, and what may become one."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Collection, Sequence

from firstlight.compare.verdicts import change
from firstlight.present.quantities import counted
from firstlight.records import slug
from firstlight.site.admission import Refused
from firstlight.site.changes import RECENT_DAYS, Change, Departure, Moved, Summary
from firstlight.site.comparisons import SnapshotPair
from firstlight.site.frame import FEED, link, page, table
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
    """`steps` are in the order in which they are shown; `repository` is where commits lead to.

    `compared` are the pairs of snapshots that have a page of their comparison.
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
            _moved(s.slower, "slower"),
            _moved(s.faster, "faster"),
            str(s.unchanged),
            str(s.too_short),
        ]
        for s in summary
    ]
    return (
        f"<section><h2>All cases, {RECENT_DAYS} days up to the newest run</h2>"
        '<p class="prose">Every case that was measured in that time counts once for each quantity '
        "on each machine, by all of its steps since together; the mean is geometric. Under ten "
        "runs no step can be seen."
        f"</p>{table(head, rows)}</section>"
    )


def _moved(moved: Moved, tone: str) -> str:
    """How many, from the least to the most, and their mean."""
    if not moved.ratios:
        return "0"
    ends = sorted(moved.ratios, key=lambda ratio: abs(math.log(ratio)))
    span = " to ".join(dict.fromkeys((change(ends[0]), change(ends[-1]))))
    mean = f", mean {change(moved.mean)}" if len(ends) > 1 else ""
    return f'<b class="{tone}">{len(ends)}</b> <span class="hint">{html.escape(span + mean)}</span>'


def _steps(
    steps: Sequence[Change], repository: str | None, compared: Collection[SnapshotPair]
) -> str:
    if not steps:
        return (
            '<section><h2>Steps</h2><p class="prose">None yet. A step is a change of level of 3 % '
            "or more that five runs on both sides bear out, so a trend needs ten of them.</p>"
            "</section>"
        )
    head = ("case", "size", "quantity", "from", "between", "machine")
    rows = [_step_row(found, repository, compared) for found in steps[:MAX_STEPS]]
    cut = f", the newest {MAX_STEPS} of {len(steps)}" if len(steps) > MAX_STEPS else ""
    return (
        f"<section><h2>Steps, newest first{cut}</h2>"
        f"{table(head, rows, 'small left changes', 'size')}</section>"
    )


def _step_row(
    found: Change, repository: str | None, compared: Collection[SnapshotPair]
) -> list[str]:
    effect = found.step.effect
    tone = _tone(effect.ratio)
    span = f"[{change(effect.low)}, {change(effect.high)}]"
    pair = SnapshotPair(found.before.snapshot, found.after.snapshot)
    comparison = f" {link(pair.path, 'compare')}" if pair in compared else ""
    size = f'<b class="{tone}">{html.escape(change(effect.ratio))}</b>'
    return [
        link(f"trends/{slug(found.case)}.html", found.case),
        f'{size} <span class="hint">{html.escape(span)}</span>',
        NAMES[found.quantity],
        link(f"snapshots/{found.after.snapshot}/index.html", day(found.after.moment)),
        between(found, repository) + comparison,
        html.escape(found.machine),
    ]


def _tone(ratio: float) -> str:
    return "slower" if ratio > 1 else "faster"


def between(found: Change, repository: str | None) -> str:
    """The commits on both sides of a step, linked where a repository is known; other versions."""
    commits = commit_range(found)
    others = [text for text in found.step.changed if not text.startswith("commit ")]
    parts = [html.escape(text) for text in others]
    if commits is not None:
        words = f"{commits[0][:9]}…{commits[1][:9]}"
        address = f"{repository.rstrip('/')}/compare/{'...'.join(commits)}" if repository else None
        shown = link(address, words) if address else f"<code>{words}</code>"
        parts.insert(0, f"commits {shown}")
    return "; ".join(parts) or "no recorded version changed"


def commit_range(found: Change) -> tuple[str, str] | None:
    """The commits of the runs before and after a step, where both are known and differ."""
    both = [str(p.versions.get("commit", "")).split(" ")[0] for p in (found.before, found.after)]
    if both[0] == both[1] or not all(_COMMIT.fullmatch(commit) for commit in both):
        return None
    return both[0], both[1]


def _departing(departing: Sequence[Departure]) -> str:
    if not departing:
        return ""
    rows = [
        [
            link(f"trends/{slug(d.case)}.html", d.case),
            f'<b class="{_tone(d.ratio)}">{html.escape(change(d.ratio))}</b>',
            NAMES[d.quantity],
            counted(d.runs, "run"),
            link(f"snapshots/{d.newest.snapshot}/index.html", day(d.newest.moment)),
            html.escape(d.machine),
        ]
        for d in departing
    ]
    head = ("case", "size", "quantity", "so far", "newest", "machine")
    return (
        '<section><h2>Perhaps a step</h2><p class="prose">The newest runs of these lie further '
        "from their level than two jobs drift apart (15 %), and are too few for a step.</p>"
        f"{table(head, rows, 'small left changes', 'size')}</section>"
    )


def _refused(refused: Sequence[Refused]) -> str:
    if not refused:
        return ""
    items = "".join(
        f"<li><code>{html.escape(r.id)}</code> <span>{html.escape(r.reason[:500])}</span></li>"
        for r in refused
    )
    return (
        f'<section id="refused" class="warnings"><h2>Refused: {counted(len(refused), "folder")} '
        "that did not verify</h2><p>Nothing of them is shown anywhere on this site.</p>"
        f"<ul>{items}</ul></section>"
    )
