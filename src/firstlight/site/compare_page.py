"""Comparison pages: one for each pair of snapshots, and the list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby

from firstlight.compare.runs import RunsReport
from firstlight.compare.verdicts import Comparison, change
from firstlight.present.quantities import counted, probability, seconds
from firstlight.site.comparisons import SnapshotPair
from firstlight.site.frame import link, page, section, snapshot_link, table
from firstlight.site.listing import when
from firstlight.site.snapshot_facts import Facts

UP = "../"
_HEADLINE = ("cold_seconds", "warm_call_seconds")  # shown even if they decide nothing
_LISTED = 1000  # heads in the list
_WORDS = (
    "As by <code>firstlight compare</code>: the Hodges–Lehmann ratio with its exact interval of "
    "95 % or more, and the Mann–Whitney p-value, adjusted by Holm over the rows that decide."
)
_COLUMNS = ("quantity", "base", "head", "change", "interval", "p (Holm)", "verdict")


def pair_page(site: str, base: Facts, head: Facts, report: RunsReport) -> bytes:
    """The comparison of two snapshots; `base` and `head` are their facts."""
    lead = _side("Base", base) + _side("Head", head)
    cases = "".join(
        _case(case, list(rows)) for case, rows in groupby(report.comparisons, lambda c: c.case)
    )
    counts = [f"{c.case}: {c.reason}" for c in report.counts if c.verdict != "same" and c.gated]
    left_out = [f"{case}: {why}" for case, why in report.left_out.items()]
    body = (
        f'<p class="prose">{_WORDS}</p>{_list("Notes", report.warnings, "warnings")}'
        f"{_list('Changed from base to head', report.changed)}{_list('Counts', counts)}"
        f"{_list('Not compared', left_out)}{cases}"
    )
    return page(site, "Comparison", body, UP, lead)


def _side(name: str, facts: Facts) -> str:
    shown = snapshot_link(facts["id"], facts["title"], UP)
    return f"<p>{name}: {shown} ({escape(when(facts['measured']))} UTC)</p>"


def _case(case: str, rows: Sequence[Comparison]) -> str:
    shown = [c for c in rows if c.gated or c.quantity in _HEADLINE]
    others = [c for c in rows if c not in shown]
    more = f"<details><summary>Every phase</summary>{_table(others)}</details>" if others else ""
    return section(escape(case), _table(shown) + more)


def _table(rows: Sequence[Comparison]) -> str:
    return table(_COLUMNS, [_row(c) for c in rows], "small comparison", "verdict")


def _row(found: Comparison) -> list[str]:
    effect = found.effect
    verdict = found.verdict if found.gated else f"({found.verdict})"
    words = f"{verdict}: {found.reason}" if found.reason else verdict
    tone = found.verdict if found.gated else "not-gated"
    cells = (
        found.quantity.removesuffix("_seconds").replace("_", " "),
        seconds(found.base.median),
        seconds(found.head.median),
        change(effect.ratio),
        f"[{change(effect.low)}, {change(effect.high)}]",
        probability(found.p_adjusted) if found.can_be_significant else "too few",
    )
    text = escape(words.replace(" %", "\u00a0%"))
    return [*map(escape, cells), f'<span class="{tone}">{text}</span>']


def _list(title: str, items: Sequence[str], class_: str = "note") -> str:
    shown = "".join(f"<li>{escape(text)}</li>" for text in items)
    return f'<div class="{class_}">{title}<ul>{shown}</ul></div>' if shown else ""


def compare_page(site: str, pairs: Sequence[SnapshotPair], facts: Mapping[str, Facts]) -> bytes:
    """The list of comparisons, newest head first; `facts` are those of all snapshots by id."""
    heads = [(head, list(own)) for head, own in groupby(pairs, lambda pair: pair.head)]
    rows = [
        [
            f'<span id="c-{head[:16]}"></span>' + snapshot_link(head, facts[head]["title"]),
            escape(when(facts[head]["measured"])),
            _links(own, facts),
        ]
        for head, own in heads[:_LISTED]
    ]
    body = (
        f'<p class="prose">{_WORDS} Each snapshot is compared with the nearest earlier ones of the '
        "same machine, protocol and data. For any other two: <code>firstlight compare BASE "
        "HEAD</code>.</p>" + table(("head", "measured", "compared with"), rows, "small left pairs")
    )
    lead = f"<p>{counted(len(pairs), 'comparison')}</p>"
    return page(site, "Compare", body, "", lead, (), "compare.html")


def _links(pairs: Sequence[SnapshotPair], facts: Mapping[str, Facts]) -> str:
    """Comparisons with one head, each by the title and the day of its base."""
    bases = [(pair, facts[pair.base]) for pair in pairs]
    return ", ".join(
        link(pair.path, f"{base['title']} ({base['measured'][:10]})") for pair, base in bases
    )
