"""The table of comparisons on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from firstlight.compare.verdicts import Comparison, change
from firstlight.present import quantities
from firstlight.present.terminal import escape

_STYLE = {"regression": "red", "improvement": "green", "inconclusive": "yellow", "same": ""}


def comparison_table(comparisons: Sequence[Comparison], title: str | None = None) -> Table:
    """One row per quantity, grouped by case; quantities that are not gated are dimmed."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("case", no_wrap=True)
    table.add_column("quantity", no_wrap=True)
    for name in ("base", "head", "change", "p (Holm)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    previous = None
    for found in comparisons:
        first = found.case != previous
        if first and previous is not None:
            table.add_section()
        previous = found.case
        table.add_row(escape(found.case) if first else "", *_cells(found))
    return table


def _cells(found: Comparison) -> list[str]:
    effect = found.effect
    style = _STYLE[found.verdict] if found.gated else "dim"
    interval = f"{change(effect.ratio)} {escape(f'[{change(effect.low)}, {change(effect.high)}]')}"
    verdict = found.verdict if found.gated else f"({found.verdict})"
    cells = [
        found.quantity,
        quantities.plain_seconds(found.base.median),
        quantities.plain_seconds(found.head.median),
        interval.replace(" %", "%"),
        quantities.probability(found.p_adjusted) if found.can_be_significant else "too few",
        f"{verdict}: {escape(found.reason)}" if found.reason else verdict,
    ]
    return [f"[{style}]{cell}[/{style}]" if style else cell for cell in cells]
